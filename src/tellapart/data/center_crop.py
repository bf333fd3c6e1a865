"""Images cut to their largest centred square, for every model that reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tellapart.data.clips import ClipSource
from tellapart.data.dataset import CaptionDataset, Example, LazyExamples
from tellapart.data.images import ImageSource

if TYPE_CHECKING:
    from PIL import Image


def center_square(image: Image.Image) -> Image.Image:
    """The largest centred square of an image; of two middle pixels the left or upper one is the centre.

    An image of width W and height H becomes one of side ``S = min(W, H)``: S columns from ``(W - S) // 2`` on, and S rows from
    ``(H - S) // 2`` on.

    Example:
        >>> center_square(Image.new("RGB", (640, 480))).size
        (480, 480)
    """
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image if width == height else image.crop((left, top, left + side, top + side))


@dataclass(frozen=True)
class CenterCropped:
    """The largest centred square of an image that is read from elsewhere.

    Its fingerprint is not that of the whole image, so embeddings of the one are never taken for those of the other.
    """

    whole: ImageSource

    @property
    def name(self) -> str:
        """Name of the whole image in messages."""
        return self.whole.name

    def read(self) -> bytes:
        """The whole image as it is stored.

        Raises:
            ImageError: it is missing or unreadable.
        """
        return self.whole.read()

    def open(self) -> Image.Image:
        """The square in RGB, upright.

        Raises:
            ImageError: the image is missing, cannot be decoded or is too large.
        """
        return center_square(self.whole.open())

    def fingerprint(self) -> str:
        """A hash of the image's content and of its being cropped."""
        return hashlib.sha256(f"center square of {self.whole.fingerprint()}".encode()).hexdigest()


@dataclass(frozen=True)
class CroppedClip(CenterCropped):
    """The same of a clip, every frame of which is cut."""

    whole: ClipSource

    def frames(self, num_frames: int) -> list[Image.Image]:
        """``num_frames`` squares, in the order of time."""
        return [center_square(frame) for frame in self.whole.frames(num_frames)]


class _LazilyCropped(LazyExamples):
    """The squares of examples that are made when they are asked for."""

    def __init__(self, whole: LazyExamples) -> None:
        self.whole, self.problems = whole, whole.problems

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        found = self.whole[index]
        return _LazilyCropped(found) if isinstance(index, slice) else _cropped(found)

    def ids(self) -> Iterator[str]:
        """The ids, in order."""
        return self.whole.ids()

    def take(self, places: np.ndarray) -> _LazilyCropped:
        """Those at ascending places."""
        return _LazilyCropped(self.whole.take(places))

    def runs(self) -> list[int]:
        """How many follow each other that are stored together."""
        return self.whole.runs()


def center_cropped(dataset: CaptionDataset) -> CaptionDataset:
    """The same images and captions, each image cut to its largest centred square when it is opened.

    The name of the data says so, and with it every result that is measured on them.

    Example:
        >>> dataset = center_cropped(load_dataset("photos/"))
        >>> dataset[0].image.open().size
    """
    examples = dataset.examples
    cropped = _LazilyCropped(examples) if isinstance(examples, LazyExamples) else [_cropped(e) for e in examples]
    return CaptionDataset(cropped, name=f"{dataset.name}, center-cropped")


def is_center_cropped(dataset: CaptionDataset) -> bool:
    """Whether the images of a data set are centred squares of the stored ones."""
    return isinstance(dataset[0].image, CenterCropped)


def _cropped(example: Example) -> Example:
    return replace(example, image=cropped_image(example.image))


def cropped_image(image: ImageSource) -> CenterCropped:
    """The largest centred square of an image, or of every frame of a clip."""
    return CroppedClip(image) if isinstance(image, ClipSource) else CenterCropped(image)


def stored(image: ImageSource) -> ImageSource:
    """The image as it is stored, of which a crop shows a part."""
    return image.whole if isinstance(image, CenterCropped) else image
