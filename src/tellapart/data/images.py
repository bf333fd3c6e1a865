"""Where images come from: files, byte ranges of archives, bytes and arrays in memory."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tellapart.data.decoding import decode
from tellapart.data.sniff import ImageError

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "ArrayImage",
    "EncodedImage",
    "ImageError",
    "ImageFile",
    "ImageSource",
    "PackedImage",
    "UnreadableImage",
    "decode",
]

LARGEST_FILE = 2**31
"""Bytes from which a file is refused: larger than any image within the limit of pixels."""


def printable(text: str) -> str:
    """The text, where parts of file names that are not UTF-8 are written as escapes."""
    return text.encode("utf-8", errors="backslashreplace").decode()


class ImageSource(Protocol):
    """Somewhere an image can be read from, repeatedly."""

    @property
    def name(self) -> str:
        """Its name in messages: a path, an archive and its member, ... ; it ends in the image's file name."""
        ...

    def read(self) -> bytes:
        """The encoded image as it is stored.

        Raises:
            ImageError: it is missing or unreadable.
        """
        ...

    def open(self) -> Image.Image:
        """The first frame in RGB, upright, transparency on white.

        Raises:
            ImageError: it is missing, cannot be decoded or is too large.
        """
        ...

    def fingerprint(self) -> str:
        """A hash of the image's content: equal pictures under other names share it."""
        ...


class _Encoded:
    """Images that are kept as bytes of some image format."""

    name: str

    def read(self) -> bytes:
        """The encoded image."""
        raise NotImplementedError

    def open(self) -> Image.Image:
        """The decoded image, upright, in RGB."""
        return decode(self.read(), self.name)

    def fingerprint(self) -> str:
        """SHA-256 of the encoded bytes."""
        return hashlib.sha256(self.read()).hexdigest()


@dataclass(frozen=True)
class ImageFile(_Encoded):
    """An image file on disk."""

    path: Path

    @property
    def name(self) -> str:  # type: ignore[override]
        """The path; bytes of it that are not UTF-8 are shown as escapes."""
        return printable(str(self.path))

    def read(self) -> bytes:
        """The file's bytes."""
        if self.name != str(self.path):  # it could be neither an id nor in a list of captions
            raise ImageError(f"{self.name} has a name that is not UTF-8: rename the file.")
        try:
            found = self.path.stat()
            if not S_ISREG(found.st_mode):  # reading from a pipe or a device would wait for ever
                kind = "a folder" if self.path.is_dir() else "no ordinary file"
                raise ImageError(f"{self.path} is {kind}, not an image: remove it, or name the files in it.")
            if found.st_size > LARGEST_FILE:
                raise ImageError(f"{self.path} has {found.st_size:,} bytes, too many for an image: remove it.")
            return self.path.read_bytes()
        except FileNotFoundError as error:
            raise ImageError(f"{self.path} does not exist: check the path that names it.") from error
        except OSError as error:
            raise ImageError(f"{self.path} cannot be read ({error.strerror}): check the path that names it.") from error
        except ValueError as error:  # a null character in the path
            raise ImageError(f"{str(self.path)!r} is not a path ({error}): check the name of the image.") from error


@dataclass(frozen=True)
class PackedImage(_Encoded):
    """A byte range of a file: a member of an uncompressed archive.

    Args:
        archive: the file.
        member: the image's own file name.
        offset: where its bytes begin.
        size: how many there are.
    """

    archive: Path
    member: str
    offset: int
    size: int

    @property
    def name(self) -> str:  # type: ignore[override]
        """The archive and the member."""
        return printable(f"{self.archive}/{self.member}")

    def read(self) -> bytes:
        """The member's bytes."""
        try:
            with self.archive.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise ImageError(f"{self.name} cannot be read ({error.strerror}): check the archive.") from error


@dataclass(frozen=True, eq=False)
class EncodedImage(_Encoded):
    """Encoded bytes in memory, under a file name."""

    data: bytes
    name: str

    def read(self) -> bytes:
        """The bytes."""
        return self.data


@dataclass(frozen=True)
class UnreadableImage(_Encoded):
    """What should have held images, and cannot be read: an archive or a video that is damaged.

    Args:
        name: of the file.
        why: what is wrong, as a sentence.
    """

    name: str
    why: str

    def read(self) -> bytes:
        """Nothing.

        Raises:
            ImageError: always.
        """
        raise ImageError(self.why)


@dataclass(frozen=True, eq=False)
class ArrayImage:
    """An image held in memory (or a memory map): ``[height, width, 3]`` uint8."""

    array: np.ndarray
    name: str = "image.png"

    def read(self) -> bytes:
        """The pixels as a PNG file."""
        buffer = io.BytesIO()
        self.open().save(buffer, format="PNG")
        return buffer.getvalue()

    def open(self) -> Image.Image:
        """The array as an image."""
        from PIL import Image

        return Image.fromarray(np.ascontiguousarray(self.array))

    def fingerprint(self) -> str:
        """SHA-256 of shape and pixels."""
        return hashlib.sha256(repr(self.array.shape).encode() + self.array.tobytes()).hexdigest()
