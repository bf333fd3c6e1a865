"""Captions that are gathered image by image, whatever their order in a file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from tellapart.packed import GrowingTexts, TextLists


class GatheredCaptions:
    """Captions of images, which may come in any order."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        """Key of an image -> its place, in the order in which they came first."""
        self._captions, self._owners = GrowingTexts(), array("q")

    def add(self, key: str, captions: Iterable[str]) -> None:
        """Add captions, perhaps none, of an image, perhaps a new one."""
        place = self.places.setdefault(key, len(self.places))
        for caption in captions:
            self._captions.append(caption)
            self._owners.append(place)

    def packed(self) -> TextLists:
        """A list for each image; nothing can be added afterwards."""
        owners = np.frombuffer(self._owners, np.int64)
        sizes = np.bincount(owners, minlength=len(self.places))
        captions = self._captions.packed().take(np.argsort(owners, kind="stable"))
        return TextLists(captions, np.append(0, np.cumsum(sizes)))
