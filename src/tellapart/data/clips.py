"""Clips: videos and animated pictures, read as a fixed number of frames."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from tellapart.data.images import ImageFile, ImageSource, printable
from tellapart.data.sniff import ImageError
from tellapart.errors import UsageError
from tellapart.frames import middles, require_frames

if TYPE_CHECKING:
    from PIL import Image

Sampling = Literal["uniform", "key_frames"]
"""``uniform`` takes the middles of equal parts of a clip's time; ``key_frames`` takes the key-frames next to them."""

NUM_FRAMES = 8
"""Frames per clip unless something else is asked for."""


@runtime_checkable
class ClipSource(ImageSource, Protocol):
    """Somewhere a clip can be read from, repeatedly. Read as an image, it is its middle frame."""

    def frames(self, num_frames: int) -> list[Image.Image]:
        """``num_frames`` frames in RGB, upright, in the order of time.

        They show the middles of ``num_frames`` equal parts of the clip, so that ``frames(1)`` is the still that ``open()``
        gives. A clip of fewer frames repeats some.

        Raises:
            ImageError: the clip is missing, cannot be decoded or is too large.
        """
        ...


class ArrayClip:
    """A clip held in memory (or a memory map).

    Args:
        name: what messages call it.
        frames: ``[T, height, width, 3]`` uint8, at least one frame.

    Raises:
        UsageError: the array has another shape.

    Example:
        >>> clip = ArrayClip("clip", np.zeros((8, 64, 64, 3), dtype=np.uint8))
        >>> len(clip.frames(4)), clip.open().size
        (4, (64, 64))
    """

    def __init__(self, name: str, frames: np.ndarray) -> None:
        if frames.ndim != 4 or frames.shape[0] < 1 or frames.shape[-1] != 3:
            raise UsageError(f"{name} has frames of shape {list(frames.shape)}: give [frames, height, width, 3].")
        self.name, self.array = name, frames

    def __repr__(self) -> str:
        return f"ArrayClip({self.name!r}, {list(self.array.shape)})"

    def frames(self, num_frames: int) -> list[Image.Image]:
        """``num_frames`` frames, those in the middle of equal parts."""
        require_frames(num_frames)
        return [self._frame(place) for place in middles(len(self.array), num_frames)]

    def open(self) -> Image.Image:
        """The middle frame."""
        return self.frames(1)[0]

    def read(self) -> bytes:
        """All frames as a lossless animated WebP file."""
        return as_webp([self._frame(place) for place in range(len(self.array))], lossless=True)

    def fingerprint(self) -> str:
        """SHA-256 of shape and pixels of all frames."""
        return hashlib.sha256(f"clip {self.array.shape}".encode() + self.array.tobytes()).hexdigest()

    def _frame(self, place: int) -> Image.Image:
        from PIL import Image

        return Image.fromarray(np.ascontiguousarray(self.array[place]))


@dataclass(frozen=True)
class ClipFile:
    """A video or an animated picture on disk.

    Videos and GIFs are decoded by PyAV (``pip install 'tellapart[video]'``), animated WebP and PNG by Pillow.

    Args:
        path: the file.
        sampling: which frames are taken.
    """

    path: Path
    sampling: Sampling = "uniform"

    @property
    def name(self) -> str:
        """The path; bytes of it that are not UTF-8 are shown as escapes."""
        return printable(str(self.path))

    def frames(self, num_frames: int) -> list[Image.Image]:
        """``num_frames`` frames, upright.

        Raises:
            ImageError: the file is missing, damaged, too large, or has no pictures.
            UsageError: PyAV is not installed.
        """
        from tellapart.data.video import read_frames

        require_frames(num_frames)
        return read_frames(self.path, self.name, num_frames, key_frames=self.sampling == "key_frames")

    def open(self) -> Image.Image:
        """The middle frame."""
        return self.frames(1)[0]

    def read(self) -> bytes:
        """The file's bytes."""
        return ImageFile(self.path).read()

    def fingerprint(self) -> str:
        """SHA-256 of the file's bytes and of the sampling; it differs from that of the same file read as an image."""
        return hashlib.sha256(f"{self.sampling} frames of {_hash_of(self.path)}".encode()).hexdigest()


@dataclass(frozen=True)
class FrameFiles:
    """A clip whose frames are image files, in the order of time.

    Args:
        paths: the files; at least one.

    Raises:
        UsageError: there are no files.
    """

    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("a clip of files has no frames: name at least one image.")

    @property
    def name(self) -> str:
        """The path of the first frame."""
        return printable(str(self.paths[0]))

    def frames(self, num_frames: int) -> list[Image.Image]:
        """``num_frames`` frames; of several alike a file is decoded once."""
        require_frames(num_frames)
        places = middles(len(self.paths), num_frames)
        opened = {place: ImageFile(self.paths[place]).open() for place in dict.fromkeys(places)}
        return [opened[place] for place in places]

    def open(self) -> Image.Image:
        """The middle frame."""
        return self.frames(1)[0]

    def read(self) -> bytes:
        """All frames, scaled to the size of the first, as a lossless animated WebP file."""
        frames = self.frames(len(self.paths))
        return as_webp([frame.resize(frames[0].size) for frame in frames], lossless=True)

    def fingerprint(self) -> str:
        """SHA-256 of the files' bytes, in order."""
        digest = hashlib.sha256(b"frame files")
        for path in self.paths:
            digest.update(hashlib.sha256(ImageFile(path).read()).digest())
        return digest.hexdigest()


def as_webp(frames: Sequence[Image.Image], *, seconds: float | None = None, lossless: bool = False) -> bytes:
    """Frames as an animated WebP file that plays for ever.

    Args:
        frames: RGB, of one size.
        seconds: how long all of them are shown; None shows four per second.
        lossless: keep every pixel.
    """
    each = round(1000 * (0.25 if seconds is None else seconds / len(frames)))
    buffer = io.BytesIO()
    # without allow_mixed=False and minimize_size=False the encoder would merge frames that are alike
    frames[0].save(
        buffer,
        format="WEBP",
        save_all=True,
        append_images=list(frames[1:]),
        duration=max(each, 1),
        loop=0,
        lossless=lossless,
        quality=100 if lossless else 75,
        exact=lossless,
        method=0 if lossless else 4,
    )
    return buffer.getvalue()


def _hash_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ImageError(f"{path} cannot be read ({error.strerror}): check the path that names it.") from error
