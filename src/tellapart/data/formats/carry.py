"""Carrying images into a folder: byte for byte, under names that are safe and unique."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tellapart.data.clips import FrameFiles
from tellapart.data.dataset import Example
from tellapart.data.folder import EXTENSIONS
from tellapart.data.formats.ids import encode_id
from tellapart.data.formats.names import Link
from tellapart.data.images import ImageFile, ImageSource
from tellapart.data.video import is_video
from tellapart.errors import UsageError

_SIGNATURES = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tif"),
    (b"MM\x00*", ".tif"),
    (b"P6", ".ppm"),
)


class Carrier:
    """Puts images where a format wants them.

    Args:
        link: copy the bytes, make a symbolic link, or leave the image where it is.
        one_caption: whether every image of the data set has exactly one caption.
        done: called after each image.
    """

    def __init__(
        self, link: Link = "copy", *, one_caption: bool = False, done: Callable[[], None] = lambda: None
    ) -> None:
        self.link, self.one_caption, self.done = link, one_caption, done
        self._taken: defaultdict[Path, set[str]] = defaultdict(set)

    def put_by_id(self, example: Example, folder: Path) -> str:
        """Put an image where its path gives its id.

        Returns:
            Its path in the folder.

        Raises:
            UsageError: the id makes no file name, two names differ by case only, or the image cannot be read.
        """
        stem = encode_id(example.id)
        if not self._take(folder, stem):
            raise UsageError(
                f"image id {example.id!r} makes a file name ({stem}) that differs from another's by case at most, and "
                "many disks cannot hold both: convert to a format that keeps ids in a file, such as folder or coco."
            )
        return self._put(example, folder, stem + suffix_of(example.image))

    def put(self, example: Example, folder: Path) -> str:
        """Put an image under a name like its id, whose ending is not repeated.

        Returns:
            Its path in the folder; where images are left, their absolute path.

        Raises:
            UsageError: the image cannot be read, or cannot be left where it is.
        """
        if self.link == "none":
            path = str(_file_of(example, "left where it is").absolute())
            self.done()
            return path
        suffix = suffix_of(example.image)
        candidates = (example.id.removesuffix(suffix), example.id, f"image {len(self._taken[folder])}")
        for candidate in candidates:
            try:
                name = encode_id(candidate) + suffix
            except UsageError:  # too long; the number is not
                continue
            if self._take(folder, name):
                return self._put(example, folder, name)
        raise UsageError(f"image {example.id!r} finds no free file name in {folder}: give it another id.")

    def put_frames(self, example: Example, clip: FrameFiles, folder: Path) -> list[str]:
        """Put the frames of a clip into a folder of their own, named like its id.

        Returns:
            Their paths below ``folder``, in the order of time; where images are left, their absolute paths.

        Raises:
            UsageError: the id is too long for a name, or a frame cannot be read.
        """
        if self.link == "none":
            self.done()
            return [str(path.absolute()) for path in clip.paths]
        stem = encode_id(example.id)
        if not self._take(folder, stem):
            raise UsageError(f"image {example.id!r} finds no free name in {folder}: give it another id.")
        (folder / stem).mkdir(parents=True)
        names = [f"{stem}/{number:06d}{path.suffix}" for number, path in enumerate(clip.paths)]
        for name, path in zip(names, clip.paths, strict=True):
            if self.link == "symlink":
                os.symlink(path.absolute(), folder / name)
            else:
                (folder / name).write_bytes(ImageFile(path).read())
        self.done()
        return names

    def read(self, example: Example) -> bytes:
        """An image's bytes, for an archive."""
        data = example.image.read()
        self.done()
        return data

    def _take(self, folder: Path, name: str) -> bool:
        taken, key = self._taken[folder], name.casefold()
        free = key not in taken
        taken.add(key)
        return free

    def _put(self, example: Example, folder: Path, name: str) -> str:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.link == "symlink":
            os.symlink(_file_of(example, "linked to").absolute(), target)
        elif isinstance(example.image, ImageFile) and example.image.path.is_file():
            shutil.copyfile(example.image.path, target)
        else:
            target.write_bytes(example.image.read())
        self.done()
        return name


def suffix_of(image: ImageSource, data: bytes | None = None) -> str:
    """The ending of an image's file name, as it is spelt; where it is none of an image, that of its content.

    Args:
        image: an image or a clip.
        data: its content; None reads it where it is needed.

    Raises:
        UsageError: neither says what it is.
    """
    if isinstance(image, FrameFiles):
        return ".webp"  # which its frames are written as
    suffix = Path(image.name).suffix
    if suffix.lower() in EXTENSIONS or is_video(image.name):
        return suffix
    data = image.read() if data is None else data
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ".webp"
    for signature, ending in _SIGNATURES:
        if data.startswith(signature):
            return ending
    raise UsageError(f"{image.name} is not an image of a known kind: expected {', '.join(sorted(EXTENSIONS))}.")


def _file_of(example: Example, what: str) -> Path:
    if not isinstance(example.image, ImageFile):
        raise UsageError(f"{example.image.name} is not a file of its own and cannot be {what}: use --link copy.")
    return example.image.path
