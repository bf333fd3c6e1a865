"""Formats with a .json file for each split, whose name tells the split."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tellapart.data.dataset import Example, joined
from tellapart.data.formats.base import InFile, Place
from tellapart.data.formats.splits import UNNAMED, in_order, split_in
from tellapart.errors import UsageError


class FilePerSplit(InFile):
    """One file is one split and answers to any split's name; the files of a folder answer to their own."""

    spans_splits = True
    links = frozenset({"copy", "symlink", "none"})

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.divided = place.is_folder and len(self.files) > 1

    @cached_property
    def by_split(self) -> dict[str, Path]:
        """Split -> its file.

        Raises:
            UsageError: two files are of one split.
        """
        found: dict[str, Path] = {}
        for file in self.files:
            split = split_in(file.stem) or UNNAMED
            if split in found:
                raise UsageError(
                    f"{self.place.path} has two files of split {split!r}, {found[split].name} and {file.name}: name one."
                )
            found[split] = file
        return found

    def splits(self) -> list[str]:
        """What the files' names tell."""
        return in_order(self.by_split)

    def read(self, splits: Sequence[str]) -> Sequence[Example]:
        """Their images, file by file."""
        return joined([self.read_file(self.by_split[split]) for split in splits])

    @abstractmethod
    def read_file(self, path: Path) -> Sequence[Example]:
        """All images of one file."""
