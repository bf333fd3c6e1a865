"""The world as a source of data, as files are: for ``tellapart data``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tellapart.data.dataset import Example
from tellapart.data.formats.base import Place
from tellapart.errors import UsageError
from tellapart.world import WORLD_SPLITS, load_world

LAYOUT = ("format", "images", "image_column", "caption_column", "id_column", "caption_extension", "context_column")
"""Options that say how files are laid out."""


def require_no_layout(options: Mapping[str, object]) -> None:
    """Raise where an option says how files are laid out, which the built-in images are not.

    Args:
        options: name -> what was given; None where nothing was. Those with other names are not looked at.

    Raises:
        UsageError: naming the first option.
    """
    named = next((name for name in LAYOUT if options.get(name) is not None), None)
    if named is not None:
        raise UsageError(f"the built-in images take no {named}: leave it out.")


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
