"""The world as a source of data, as files are: for ``tellapart data``."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.data.dataset import Example
from tellapart.data.formats.base import Place
from tellapart.world import WORLD_SPLITS, load_world


class WorldSource:
    """The splits of the built-in images.

    Args:
        size: full or small.
    """

    divided = True

    def __init__(self, size: str) -> None:
        self.place, self.size = Place("world"), size

    def splits(self) -> list[str]:
        """All splits."""
        return list(WORLD_SPLITS)

    def read(self, splits: Sequence[str]) -> list[Example]:
        """Their images with their references."""
        return [example for split in splits for example in load_world(split, size=self.size)]
