"""TGIF's captions (Li et al., CVPR 2016): ``url<TAB>sentence``, a sentence per line, and lists of the URLs of each split."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from tellapart.data.captions import read_text
from tellapart.data.dataset import Example
from tellapart.data.formats.base import Place, ReadOnly
from tellapart.data.formats.clip_folder import ClipFinder, root_of_clips
from tellapart.data.formats.lines import lines_of
from tellapart.data.formats.splits import SPLIT_NAMES, UNNAMED, in_order
from tellapart.errors import UsageError


class Tgif(ReadOnly):
    """``tgif-v1.0.tsv`` with local GIFs (or videos made of them), found by the file name in the URL.

    A clip's id is that name without ending. ``splits/train.txt``, ``val.txt`` and ``test.txt``, as in TGIF's repository, divide
    the clips where they lie next to the table; clips that they do not name are left out.
    """

    name = "tgif"
    spans_splits = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.divided = bool(self._lists)

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether the file, or one at the top of the folder, begins with the name of a GIF, a tab and a sentence."""
        return bool(_tables(place))

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is one such file."""
        found = _tables(place)
        if len(found) != 1:
            raise UsageError(f"{place.path} holds {len(found)} files of url<TAB>sentence, not one: name the file.")

    @cached_property
    def file(self) -> Path:
        """The table."""
        self.require(self.place)
        return _tables(self.place)[0]

    @cached_property
    def _lists(self) -> dict[str, Path]:
        folders = (self.file.parent / "splits", self.file.parent)
        found = {split: folder / f"{split}.txt" for folder in reversed(folders) for split in SPLIT_NAMES}
        return {split: file for split, file in found.items() if file.is_file()}

    def splits(self) -> list[str]:
        """Those that lists of URLs are named after."""
        return in_order(self._lists) or [UNNAMED]

    def read(self, splits: Sequence[str]) -> list[Example]:
        """The clips of these splits, in the order of the table.

        Raises:
            UsageError: a line is broken, or no clips are found.
        """
        wanted = {_name(line) for split in splits if split in self._lists for line in self._lines(self._lists[split])}
        captions: dict[str, list[str]] = {}
        for number, line in enumerate(self._lines(self.file), start=1):
            url, tab, sentence = line.partition("\t")
            if not tab or not url:
                raise UsageError(f"{self.file}, line {number}: {line[:80]!r} is not url<TAB>sentence: correct it.")
            if not self.divided or _name(url) in wanted:
                captions.setdefault(_name(url), []).append(sentence)
        finder = ClipFinder(root_of_clips(self.place, self.file), self.place)
        finder.require_any(self.file)
        return [Example(name, finder.find(name, ending=".gif"), tuple(texts)) for name, texts in captions.items()]

    def _lines(self, file: Path) -> list[str]:
        return [line.removesuffix("\r") for line in lines_of(read_text(file)) if line.strip()]


def _name(url: str) -> str:
    """The name in a URL without ending."""
    return PurePosixPath(url.strip().partition("?")[0]).stem


def _tables(place: Place) -> list[Path]:
    files = [place.path / name for name in place.names] if place.is_folder else [place.path]
    return [file for file in files if file.suffix.lower() == ".tsv" and file.is_file() and _begins(file)]


def _begins(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as lines:
            cells = next((line for line in lines if line.strip()), "").rstrip("\n").split("\t")
    except OSError:
        return False
    return len(cells) == 2 and PurePosixPath(cells[0].partition("?")[0]).suffix.lower() == ".gif"
