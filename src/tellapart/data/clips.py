"""Clips: videos and animated pictures, read as a fixed number of frames."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, get_args, runtime_checkable

import numpy as np

from tellapart.data.images import ImageFile, ImageSource, PackedImage, printable
from tellapart.data.sniff import ImageError
from tellapart.data.video import ExaminedClip, examine_frames, is_animation, is_video
from tellapart.errors import UsageError
from tellapart.frames import Sampling, middles, require_frames

if TYPE_CHECKING:
    from PIL import Image


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


class StoredClip:
    """Shared by clips on disk: they are decoded by PyAV, animated WebP and PNG by Pillow."""

    name: str

    def _source(self) -> Path | bytes:
        raise NotImplementedError

    @property
    def _key_frames(self) -> bool:
        return False

    def frames(self, num_frames: int) -> list[Image.Image]:
        """``num_frames`` frames, upright.

        Raises:
            ImageError: the clip is missing, damaged, too large, or has no pictures.
            UsageError: PyAV is not installed.
        """
        return self.examine(num_frames).frames

    def examine(self, num_frames: int) -> ExaminedClip:
        """The same frames, and what is unusual about the clip."""
        require_frames(num_frames)
        return examine_frames(self._source(), self.name, num_frames, key_frames=self._key_frames)


@dataclass(frozen=True)
class ClipFile(StoredClip, ImageFile):
    """A video or an animated picture on disk.

    Videos and GIFs are decoded by PyAV (``pip install 'tellapart[video]'``), animated WebP and PNG by Pillow.

    Args:
        path: the file.
        sampling: which frames are taken.

    Example:
        >>> clip = ClipFile(Path("clip.mp4"))
        >>> [frame.size for frame in clip.frames(2)]
        [(640, 480), (640, 480)]
    """

    sampling: Sampling = "uniform"

    def open(self) -> Image.Image:
        """The middle frame."""
        return self.frames(1)[0]

    def fingerprint(self) -> str:
        """SHA-256 of the file's bytes and of the sampling; it differs from that of the same file read as an image."""
        return _of_frames(_hash_of(self.path), self.sampling)

    def _source(self) -> Path:
        return self.path

    @property
    def _key_frames(self) -> bool:
        return self.sampling == "key_frames"


@dataclass(frozen=True)
class AnimatedFile(StoredClip, ImageFile):
    """A GIF or WebP file among images: read as an image, it is its first frame, like every image of several frames."""

    def _source(self) -> Path:
        return self.path


@dataclass(frozen=True)
class PackedClip(StoredClip, PackedImage):
    """A video in an uncompressed archive.

    Args:
        archive: the file.
        member: the clip's own file name.
        offset: where its bytes begin.
        size: how many there are.
        sampling: which frames are taken.
    """

    sampling: Sampling = "uniform"

    def open(self) -> Image.Image:
        """The middle frame."""
        return self.frames(1)[0]

    def fingerprint(self) -> str:
        """SHA-256 of the bytes and of the sampling, as of the same clip in a file."""
        return _of_frames(hashlib.sha256(self.read()).hexdigest(), self.sampling)

    def _source(self) -> bytes:
        return self.read()

    @property
    def _key_frames(self) -> bool:
        return self.sampling == "key_frames"


@dataclass(frozen=True)
class PackedAnimation(StoredClip, PackedImage):
    """A GIF or WebP file in an uncompressed archive; read as an image, it is its first frame."""

    def _source(self) -> bytes:
        return self.read()


Animation = AnimatedFile | PackedAnimation
"""What may move by its ending, and is an image for models of images."""


def on_disk(path: Path, sampling: Sampling = "uniform", *, clips: bool = False) -> ImageFile:
    """A file as the image or clip that its ending says it is.

    Args:
        path: the file.
        sampling: which frames of videos are taken.
        clips: the data are clips, so that GIF and WebP files are clips, too, and not images of several frames.
    """
    if is_video(path.name) or (clips and is_animation(path.name)):
        return ClipFile(path, sampling)
    return AnimatedFile(path) if is_animation(path.name) else ImageFile(path)


def in_archive(archive: Path, member: str, offset: int, size: int, sampling: Sampling = "uniform") -> PackedImage:
    """A member of an archive as the image or clip that its ending says it is; arguments as of ``PackedClip``."""
    if is_video(member):
        return PackedClip(archive, member, offset, size, sampling)
    return (PackedAnimation if is_animation(member) else PackedImage)(archive, member, offset, size)


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


def sheet(frames: Sequence[Image.Image], *, columns: int = 4, tile: tuple[int, int] = (96, 72)) -> Image.Image:
    """Frames next to each other on one picture, row by row.

    Args:
        frames: RGB.
        columns: frames in a row.
        tile: width and height in pixels that each is scaled to.
    """
    from PIL import Image

    width, height = tile
    rows = -(-len(frames) // columns)
    found = Image.new("RGB", (min(columns, len(frames)) * width, rows * height))
    for number, frame in enumerate(frames):
        found.paste(frame.resize(tile), (number % columns * width, number // columns * height))
    return found


def fingerprints(path: Path) -> frozenset[str]:
    """The fingerprints of a file, read as an image and as a clip of either sampling.

    Raises:
        ImageError: it cannot be read.
    """
    known = _hash_of(path)
    return frozenset([known, *(_of_frames(known, sampling) for sampling in get_args(Sampling))])


def _of_frames(known: str, sampling: Sampling) -> str:
    return hashlib.sha256(f"{sampling} frames of {known}".encode()).hexdigest()


def _hash_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ImageError(f"{path} cannot be read ({error.strerror}): check the path that names it.") from error
