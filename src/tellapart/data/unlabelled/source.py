"""Folders of images, tars and videos, mixed as they come, opened as data without captions."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.folder import EXTENSIONS, below, is_image, walk
from tellapart.data.formats.base import Place
from tellapart.data.formats.splits import SPLIT_NAMES, UNNAMED, in_order
from tellapart.data.images import printable
from tellapart.data.tars import is_tar, members_within, reading_tar
from tellapart.data.unlabelled.index import Files, Frames, Indexed, Members, Names, Part
from tellapart.data.unlabelled.remembered import remembered
from tellapart.data.unlabelled.videos import key_frames
from tellapart.data.video import is_video
from tellapart.errors import UsageError
from tellapart.progress import track

# Where the images of a tar begin and end. Unlike the reader of captioned tars, it takes what a damaged one still holds.


def members_of(archive: Path, name: str) -> tuple[Members, str | None]:
    """The images of a tar, and a sentence if it is cut or damaged: then they are those before the damage.

    Args:
        archive: the tar.
        name: what ids begin with.
    """
    try:
        found = remembered("tars", archive, _members)
    except OSError as error:
        found = _found({}, f"{archive} cannot be read ({error.strerror}): check the file and its permissions.")
    offsets, sizes = (np.array(found[key], dtype=np.int64) for key in ("offsets", "sizes"))
    return Members(archive, name, Names(found["names"]), offsets, sizes), found["problem"]


def _members(path: Path) -> dict[str, Any]:
    """Names, offsets and sizes of the images. One that comes twice counts at its last place, as when a tar is unpacked."""
    images: dict[str, tuple[int, int]] = {}
    try:
        with path.open("rb") as data, reading_tar(data) as archive:
            for member in members_within(archive):
                if member.isfile() and _is_picture(member.name):
                    images[member.name] = (member.offset_data, member.size)
    except (tarfile.TarError, EOFError, ValueError) as error:
        return _found(
            images,
            f"{path} is not a whole tar archive ({error}): the {len(images)} images before that are used; unpack it if "
            "it is compressed, or get it again.",
        )
    return _found(images, None)


def _found(images: dict[str, tuple[int, int]], problem: str | None) -> dict[str, Any]:
    offsets, sizes = [list(column) for column in zip(*images.values(), strict=True)] if images else [[], []]
    return {"names": list(images), "offsets": offsets, "sizes": sizes, "problem": problem}


def _is_picture(name: str) -> bool:
    """Whether a member is the picture of its sample; ``1.mask.png`` is not, by WebDataset's rule of the first dot."""
    file = name.rpartition("/")[2]
    stem, _, ending = file.partition(".")
    return bool(stem) and "." not in ending and is_image(file) and name.isprintable() and _is_unicode(name)


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


NAME = "unlabelled"
"""The format's name."""

_AT_ONCE = 8
"""Files that are gone through at once: their headers lie far apart, and disks answer several better than one."""

_CAPTIONS = frozenset({".txt", ".caption", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".token"})
"""Endings of files that may hold captions."""

Found = tuple[Part, str, "str | None"]


class Unlabelled:
    """Image files, the images in tars (WebDataset shards) and the key-frames of videos, in a folder and all below it, or one
    file, or several tars named by a pattern. Captions are not looked at.

    Ids are paths below the folder: ``a/1.jpg``, ``00000.tar/000000012.jpg``, ``a/film.mp4#t=12.480``.

    Args:
        place: where.
    """

    holds_images = True

    def __init__(self, place: Place) -> None:
        self.place = place
        self._folders = _split_folders(place) if place.is_folder else []
        self.divided = bool(self._folders)

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether only this reads all there is: a video, a folder with one at its top, or with tars next to images.

        Not where a file may hold captions, which other formats read.
        """
        if not place.is_folder:
            return is_video(place.sample.name)
        if any(os.path.splitext(name)[1].lower() in _CAPTIONS for name in place.names):
            return False
        videos, tars, images = (any(map(kind, place.names)) for kind in (is_video, is_tar, is_image))
        return videos or (tars and images)

    def splits(self) -> list[str]:
        """Subfolders named like splits, else the one that data without splits count as."""
        return self._folders or [UNNAMED]

    def read(self, splits: Sequence[str]) -> Indexed:
        """The images: files first, then archives, then videos, each in the order of their paths.

        Raises:
            UsageError: there is no image, or a path does not exist.
        """
        files = sorted(self._files(splits))
        root = self._root(files)
        named = {file: _name(file, root) for file in files if is_image(file)}
        loose = [name for name in named.values() if name is not None]
        packed = [file for file in files if is_tar(file) or is_video(file)]
        found: list[Found] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            opened = pool.map(lambda file: self._open(Path(file), below(Path(file), root)), packed)
            found += track(opened, "looking into archives and videos", total=len(packed)) if packed else ()
        parts = [Files(root, Names(loose)), *(part for part, _, _ in found)]
        problems = [
            (printable(file), f"{printable(file)} has a name that is not UTF-8: rename the file.")
            for file, name in named.items()
            if name is None
        ]
        problems += [(name, problem) for _, name, problem in found if problem is not None]
        images = Indexed(parts, problems=problems)
        if not len(images):
            raise UsageError(problems[0][1] if problems else self._nothing())
        return images

    def _files(self, splits: Sequence[str]) -> Iterable[str]:
        if not self.place.is_folder:
            return self.place.listed
        folders = [self.place.path / split for split in splits] if self.divided else [self.place.path]
        return (os.path.join(folder, name) for root in folders for folder, names in walk(root) for name in names)

    def _root(self, files: Sequence[str]) -> Path:
        """The folder that ids are relative to."""
        if self.place.is_folder:
            return self.place.path
        return Path(os.path.commonpath([os.path.dirname(file) or "." for file in files]))

    def _open(self, file: Path, name: str) -> Found:
        if is_tar(file.name):
            members, problem = members_of(file, name)
            return members, name, problem
        stamps, seconds, problem = key_frames(file, seconds_between=self.place.seconds_between)
        return Frames(file, name, stamps, seconds), name, problem

    def _nothing(self) -> str:
        endings = ", ".join(sorted(EXTENSIONS))
        return f"{self.place.given} holds no images ({endings}), tars of images or videos: check the path."


def _split_folders(place: Place) -> list[str]:
    return in_order(name for name in place.names if name in SPLIT_NAMES and (place.path / name).is_dir())


def _name(file: str, root: Path) -> str | None:
    """The path below the root; none for a name that is not UTF-8, which no list of captions could hold."""
    name = below(Path(file), root)
    try:
        name.encode()
    except UnicodeEncodeError:
        return None
    return name
