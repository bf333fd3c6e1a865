"""MSVD's captions (Chen and Dolan, ACL 2011) in the three forms in which they are passed on."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from tellapart.data.captions import read_text
from tellapart.data.dataset import Example
from tellapart.data.formats.base import Place, ReadOnly
from tellapart.data.formats.clip_folder import ClipFinder, root_of_clips
from tellapart.data.formats.lines import lines_of
from tellapart.data.formats.rows import delimited_rows
from tellapart.data.formats.splits import UNNAMED, in_order, split_in
from tellapart.errors import UsageError

MAPPING = "youtube_mapping.txt"
"""Lines of ``<file name without ending> vid<number>``."""

_SENTENCES = re.compile(r"sents_(train|val|test)(_\w+)?\.txt")
_ALL = re.compile(r"AllVideoDescriptions.*\.txt")
_CORPUS = ("VideoID", "Start", "End", "Description")


class Msvd(ReadOnly):
    """One or several of these files, or a folder that holds them (also in its ``captions``).

    * ``sents_train_lc_nopunc.txt`` (val, test): ``vid1<TAB>sentence``, the files of S2VT, divided into splits by their names;
    * ``AllVideoDescriptions.txt``: ``<clip> sentence``, after a head of lines that begin with ``#``;
    * the corpus as a table with ``VideoID,Start,End,Language,Description``, of which English sentences are read.

    A clip's id is what its lines begin with (of the table ``<VideoID>_<Start>_<End>``). Its file has that name, or the one that
    ``youtube_mapping.txt`` gives for it.
    """

    name = "msvd"
    spans_splits = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.divided = place.is_folder and len(self.by_split) > 1

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether there is such a file."""
        return bool(_files(place))

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is one."""
        if not _files(place):
            raise UsageError(
                f"{place.path} is not a caption file of MSVD (sents_train_lc_nopunc.txt, AllVideoDescriptions.txt or a table "
                "with VideoID, Start, End and Description): name one."
            )

    @cached_property
    def by_split(self) -> dict[str, Path]:
        """Split -> its file; sentences that are divided count before the same ones that are not.

        Raises:
            UsageError: two files are of one split.
        """
        files = _files(self.place)
        divided: dict[str, Path] = {}
        for file in files:
            split = _split(file)
            if split is not None and divided.setdefault(split, file) != file:
                raise UsageError(f"{divided[split]} and {file} are both of split {split!r}: name the files to read.")
        return divided or {UNNAMED: files[0]}

    def splits(self) -> list[str]:
        """What the files' names tell."""
        return in_order(self.by_split)

    def read(self, splits: Sequence[str]) -> list[Example]:
        """Their clips, in the order of the files.

        Raises:
            UsageError: a line is broken, or no clips are found.
        """
        return [example for split in splits for example in self._read(self.by_split[split])]

    def _read(self, file: Path) -> list[Example]:
        captions: dict[str, list[str]] = {}
        for name, sentence in _rows(file):
            captions.setdefault(name, []).append(sentence)
        root = root_of_clips(self.place, file)
        finder = ClipFinder(root, self.place)
        finder.require_any(file)
        other = _mapping(file.parent) | _mapping(root)
        return [
            Example(name, finder.find(name, other.get(name, name), ending=".avi"), tuple(texts))
            for name, texts in captions.items()
        ]


def _files(place: Place) -> list[Path]:
    if not place.is_folder:
        return [file for file in map(Path, place.listed) if _is_one(file)]
    folders = [place.path, place.path / "captions"]
    return [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir()) if _is_one(file)]


def _is_one(file: Path) -> bool:
    if _SENTENCES.fullmatch(file.name) or _ALL.fullmatch(file.name):
        return file.is_file()
    return file.suffix.lower() == ".csv" and file.is_file() and _is_corpus(file)


def _is_corpus(file: Path) -> bool:
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        heading = next(csv.reader([next(lines, "").strip()]), [])
    return all(name in heading for name in _CORPUS)


def _split(file: Path) -> str | None:
    return split_in(file.stem) if _SENTENCES.fullmatch(file.name) else None


def _rows(file: Path) -> Iterator[tuple[str, str]]:
    """Name of a clip and a sentence."""
    if file.suffix.lower() == ".csv":
        for _, row in delimited_rows(file, ","):
            if row.get("Language", "English") == "English" and row["Description"]:
                yield f"{row['VideoID']}_{row['Start']}_{row['End']}", row["Description"]
        return
    between = "\t" if _SENTENCES.fullmatch(file.name) else " "
    for number, line in enumerate(lines_of(read_text(file)), start=1):
        if not line.strip() or (between == " " and line.startswith("#")):
            continue
        name, found, sentence = line.partition(between)
        if not found or not name:
            raise UsageError(f"{file}, line {number}: {line[:80]!r} is not a clip's name and a sentence: correct it.")
        yield name, sentence.removesuffix("\r")


def _mapping(folder: Path) -> dict[str, str]:
    """``vid<number>`` -> name of its file, and the other way round."""
    file = folder / MAPPING
    if not file.is_file():
        return {}
    pairs = [(cells[0], cells[1]) for line in lines_of(read_text(file)) if len(cells := line.split()) == 2]
    return {number: name for name, number in pairs} | dict(pairs)
