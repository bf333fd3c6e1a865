"""Image files: finding those below a folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tellapart.data.decoding import ENDINGS
from tellapart.data.video import is_animation, is_video
from tellapart.errors import UsageError

logger = logging.getLogger(__name__)

EXTENSIONS = frozenset(ending for endings in ENDINGS.values() for ending in endings)

TRIED = 1000
"""Missing images after which it is the folder that is wrong."""


def walk(root: Path, *, onerror: Callable[[OSError], None] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Each folder below ``root`` and itself, with the names of its files; hidden files and folders are skipped.

    Links to folders are followed, but not back into a folder that they are in, which would never end.

    Args:
        root: where to begin.
        onerror: is called with errors of folders that cannot be read.
    """
    above = {os.fspath(root): {_identity(root)}}  # folder -> those it is in, and itself
    for folder, subfolders, names in os.walk(root, followlinks=True, onerror=onerror):
        inside = above.pop(folder)
        paths = {name: os.path.join(folder, name) for name in subfolders if not name.startswith(".")}
        known = {name: _identity(path) for name, path in paths.items()}
        subfolders[:] = [name for name in paths if known[name] not in inside]
        above |= {paths[name]: inside | {known[name]} for name in subfolders}
        yield folder, [name for name in names if not name.startswith(".")]


def _identity(folder: str | Path) -> tuple[int, int]:
    """Identity of a folder, independent of the path to it; none for one that has just been removed."""
    try:
        found = os.stat(folder)
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def root_of(names: Iterable[str], roots: Sequence[Path]) -> Path | None:
    """The first of the folders in which the first image is found; if it is missing, the second one decides, and so on."""
    return next((root for name in islice(names, TRIED) for root in roots if is_file(root / name)), None)


def is_file(path: Path) -> bool:
    """Whether there is a file; there is none of a name that is too long for one."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_image(name: str) -> bool:
    """Whether a file's name has the ending of an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def find_images(root: Path) -> list[Path]:
    """Image files below ``root``, sorted; hidden files and folders are skipped."""
    folders = walk(root, onerror=_tell)
    return sorted(Path(folder, name) for folder, names in folders for name in names if is_image(name))


def find_pictures(root: Path) -> list[Path]:
    """Image files below ``root``; of a folder without any, its videos. Sorted; hidden files are skipped."""
    return find_images(root) or find_videos(root)


def find_videos(root: Path, *, animations: bool = False) -> list[Path]:
    """Videos below ``root``, sorted; with ``animations`` also GIF and WebP files."""
    folders = walk(root, onerror=_tell)
    return sorted(
        Path(folder, name)
        for folder, names in folders
        for name in names
        if is_video(name) or (animations and is_animation(name))
    )


def _tell(error: OSError) -> None:
    logger.warning("%s cannot be read (%s): its images are left out.", error.filename, error.strerror)


def below(file: Path, root: Path) -> str:
    """A file's path relative to a folder that it is in, with ``/``; pathlib takes minutes for a million of them."""
    start = "" if root == Path() else os.path.join(root, "")
    return str(file)[len(start) :].replace(os.sep, "/")


def require_images(root: Path) -> list[Path]:
    """Image files below ``root``, sorted.

    Raises:
        UsageError: there are none.
    """
    return _required(root, find_images(root), "")


def require_pictures(root: Path) -> list[Path]:
    """The same; of a folder without images, its videos.

    Raises:
        UsageError: there are none.
    """
    return _required(root, find_pictures(root), " and no videos")


def _required(root: Path, files: list[Path], others: str) -> list[Path]:
    if not files:
        raise UsageError(f"{root} holds no images ({', '.join(sorted(EXTENSIONS))}){others}: check the path.")
    return files
