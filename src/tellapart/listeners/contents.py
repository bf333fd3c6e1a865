"""Images whose content was hashed, and which of them show one picture as far as that tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tellapart.errors import UsageError
from tellapart.listeners.cache import NamedPicture, Picture
from tellapart.progress import track

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Hashed:
    """A picture whose content was hashed already."""

    picture: Picture
    content: str

    def open(self) -> Image.Image:
        """The image in RGB."""
        return self.picture.open()

    def fingerprint(self) -> str:
        """The hash."""
        return self.content


@dataclass(frozen=True)
class HashedImage:
    """An image with an id, which is not read again for its content."""

    id: str
    image: Hashed


def hashed(images: Iterable[NamedPicture]) -> list[HashedImage]:
    """The images with the hash of their content, which takes reading them all."""
    examples = list(images)
    return [HashedImage(e.id, Hashed(e.image, e.image.fingerprint())) for e in track(examples, "hashing images")]


def together(offered: list[HashedImage], asked: list[HashedImage]) -> tuple[list[HashedImage], dict[str, int]]:
    """All images once, those offered first, and the position of each id."""
    items = {item.id: item for item in offered}
    for item in asked:
        if items.setdefault(item.id, item).image.content != item.image.content:
            raise UsageError(f"image id {item.id!r} names two different pictures: give the data sets distinct ids.")
    return list(items.values()), {name: i for i, name in enumerate(items)}


def content_labels(items: list[HashedImage]) -> np.ndarray:
    """``[P]``: the position of the first image of the same content."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(item.image.content, i) for i, item in enumerate(items)], np.int64)


def told_pairs(position: Mapping[str, int], same: Iterable[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """``[M]`` and ``[M]``: positions of images that groups of ids say are the same; ids of no image are left out."""
    told = [[position[name] for name in group if name in position] for group in same]
    pairs = [(group[0], other) for group in told for other in group[1:]]
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    return left, right
