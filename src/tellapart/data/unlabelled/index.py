"""An index of images that lie in files, archives and videos: some forty bytes per image, whatever their number.

An ``Example`` takes more than ten times as much, and three million of them would be copied
page by page into every process that reads images. So examples are made when they are asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tellapart.data.dataset import Example, LazyExamples
from tellapart.data.images import ImageFile, PackedImage
from tellapart.data.unlabelled.videos import KeyFrame, moment

LOOSE = 1000
"""Image files in a folder that count as lying together."""


class Names(Sequence[str]):
    """Many short texts in one block of memory.

    Args:
        texts: the texts.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        self._bytes = b"".join(encoded)
        self._ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        start = int(self._ends[index - 1]) if index else 0
        return self._bytes[start : int(self._ends[index])].decode()


class Part(Protocol):
    """Images that lie together: those of one archive, of one video, or a run of files."""

    def __len__(self) -> int: ...

    def id(self, index: int) -> str:
        """The id of the image at a place from 0 up."""
        ...

    def example(self, index: int) -> Example:
        """That image."""
        ...


@dataclass(frozen=True)
class Files:
    """Image files below a folder.

    Args:
        root: the folder.
        names: their paths below it, with ``/``; these are the ids.
    """

    root: Path
    names: Names

    def __len__(self) -> int:
        return len(self.names)

    def id(self, index: int) -> str:
        """One file's path."""
        return self.names[index]

    def example(self, index: int) -> Example:
        """One file."""
        name = self.names[index]
        return Example(name, ImageFile(self.root / name))


@dataclass(frozen=True, eq=False)
class Members:
    """Images in an uncompressed tar.

    Args:
        archive: the tar.
        name: what ids begin with: its path below the data's folder; a slash and the member follow.
        members: names in the archive.
        offsets: ``[M]``, the byte each begins at.
        sizes: ``[M]``, in bytes.
    """

    archive: Path
    name: str
    members: Names
    offsets: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.members)

    def id(self, index: int) -> str:
        """Archive and member."""
        return f"{self.name}/{self.members[index]}"

    def example(self, index: int) -> Example:
        """One member."""
        member = self.members[index]
        image = PackedImage(self.archive, member, int(self.offsets[index]), int(self.sizes[index]))
        return Example(f"{self.name}/{member}", image)


@dataclass(frozen=True, eq=False)
class Frames:
    """Key-frames of a video.

    Args:
        video: the file.
        name: what ids begin with: its path below the data's folder; ``#t=`` and the seconds follow.
        stamps: ``[M]``, presentation time stamps in the stream's unit.
        seconds: ``[M]``, the same in seconds from the stream's start.
    """

    video: Path
    name: str
    stamps: np.ndarray
    seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.stamps)

    def id(self, index: int) -> str:
        """Video and time."""
        return f"{self.name}#{moment(self.seconds[index])}"

    def example(self, index: int) -> Example:
        """One frame."""
        frame = KeyFrame(self.video, int(self.stamps[index]), float(self.seconds[index]))
        return Example(self.id(index), frame)


class Indexed(LazyExamples):
    """The images of several parts, one part after the other, or some of these images.

    Args:
        parts: the parts; no two images may share an id.
        problems: what could not be read while the index was made: the file's name and a sentence.
        chosen: places among all images of the parts, ascending; None takes all.
    """

    def __init__(
        self, parts: Sequence[Part], *, problems: Sequence[tuple[str, str]] = (), chosen: np.ndarray | None = None
    ) -> None:
        self.parts, self.problems = [part for part in parts if len(part)], tuple(problems)
        self._starts = np.cumsum([0, *map(len, self.parts)]).tolist()
        self._chosen = chosen

    def __len__(self) -> int:
        return self._starts[-1] if self._chosen is None else len(self._chosen)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        part, place = self._find(int(index) % len(self))
        return part.example(place)

    def _find(self, place: int) -> tuple[Part, int]:
        """The part that an image is in, and where in it."""
        if self._chosen is not None:
            place = int(self._chosen[place])
        part = bisect_right(self._starts, place) - 1
        return self.parts[part], place - self._starts[part]

    def ids(self) -> Iterator[str]:
        """The ids, in order."""
        if self._chosen is None:
            return (part.id(place) for part in self.parts for place in range(len(part)))
        return (part.id(place) for part, place in map(self._find, range(len(self))))

    def take(self, places: np.ndarray) -> Indexed:
        """The images at ascending places."""
        chosen = places if self._chosen is None else self._chosen[places]
        return Indexed(self.parts, problems=self.problems, chosen=chosen)

    def runs(self) -> list[int]:
        """How many images follow each other that lie together: those of an archive or a video, a thousand files."""
        places = np.arange(len(self)) if self._chosen is None else self._chosen
        return np.diff(np.searchsorted(places, list(self._bounds()))).tolist()

    def _bounds(self) -> Iterator[int]:
        for start, part in zip(self._starts, self.parts, strict=False):
            yield from range(start, start + len(part), LOOSE) if isinstance(part, Files) else [start]
        yield self._starts[-1]
