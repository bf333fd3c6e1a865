"""Image files: finding those below a folder, and plain lists of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})


def walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder below ``root`` and itself, with the names of its files; hidden files and folders are passed over."""
    for folder, subfolders, names in os.walk(root, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield folder, [name for name in names if not name.startswith(".")]


def is_image(name: str) -> bool:
    """Whether a file's name has the ending of an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def find_images(root: Path) -> list[Path]:
    """Image files below ``root``, sorted; hidden files and folders are passed over."""
    return sorted(Path(folder, name) for folder, names in walk(root) for name in names if is_image(name))


def below(file: Path, root: Path) -> str:
    """A file's path relative to a folder that it is in, with ``/``; pathlib takes minutes for a million of them."""
    start = "" if root == Path() else os.path.join(root, "")
    return str(file)[len(start) :].replace(os.sep, "/")


def require_images(root: Path) -> list[Path]:
    """The same.

    Raises:
        UsageError: there are none.
    """
    files = find_images(root)
    if not files:
        raise UsageError(f"{root} holds no images ({', '.join(sorted(EXTENSIONS))}): check the path.")
    return files


def from_images(paths: str | Path | Iterable[str | Path], *, name: str = "images") -> CaptionDataset:
    """Image files (or folders of them) without references, in the order given; ids are the paths as given.

    Raises:
        UsageError: a path does not exist or is no image file, or there are none.
    """
    examples: list[Example] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        file = Path(path)
        if not file.exists():
            raise UsageError(f"{file} does not exist: check the path.")
        if file.is_file() and not is_image(file.name):
            raise UsageError(f"{file} is not an image file: expected one of {', '.join(sorted(EXTENSIONS))}.")
        examples += [Example(f.as_posix(), ImageFile(f)) for f in (find_images(file) if file.is_dir() else [file])]
    return CaptionDataset(examples, name=name)
