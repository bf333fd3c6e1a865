"""Which caption belongs to which image of the references: by id, or by the name of the image's file."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from tellapart.data.dataset import CaptionDataset
from tellapart.data.formats.ids import image_id
from tellapart.data.images import ImageFile
from tellapart.data.results import PackedRows, Result, Results
from tellapart.errors import UsageError, count_of, quoted
from tellapart.packed import Keyed, Texts

logger = logging.getLogger(__name__)

OnMismatch = Literal["fail", "skip"]
SHOWN = 5


@dataclass(frozen=True)
class Matched:
    """Captions of images that have references, and what was left over.

    Args:
        captions: image id -> caption, in the references' order; of several, the first.
        by_name: whether images were found by the names of their files.
        missing: images without a caption.
        extra: captions of images that the references do not name.
        duplicates: images captioned more than once.
        bare: images captioned that have no references.
    """

    captions: Mapping[str, str]
    by_name: bool
    missing: list[str]
    extra: list[str]
    duplicates: list[str]
    bare: list[str]

    @property
    def fits(self) -> bool:
        """Whether every image has one caption and references."""
        return not any(self.lists().values())

    def lists(self) -> dict[str, list[str]]:
        """Kind of misfit -> ids."""
        return {
            "missing": self.missing,
            "extra": self.extra,
            "duplicates": self.duplicates,
            "without_references": self.bare,
        }

    def left_out(self) -> str:
        """What is not scored where the rest is; of several captions of an image the first counts."""
        once = replace(self, duplicates=[])
        parts = [] if once.fits else [f"left out: {once.misfit()}"]
        if self.duplicates:
            twice = f"{count_of(len(self.duplicates), 'image')} captioned more than once"
            parts.append(f"of {twice} ({_first(self.duplicates, _ROOM)}) the first caption counts")
        return "; ".join(parts)

    def misfit(self) -> str:
        """The mismatches, with numbers and the first ids of each kind, of fewer where there are several kinds."""
        kinds = {
            "without a caption": self.missing,
            "not in the references": self.extra,
            "captioned more than once": self.duplicates,
            "without references": self.bare,
        }
        found = {kind: ids for kind, ids in kinds.items() if ids}
        return " and ".join(
            f"{count_of(len(ids), 'image')} {kind} ({_first(ids, _ROOM // len(found))})" for kind, ids in found.items()
        )


_ROOM = 100
"""Characters that the ids of a sentence may take, about."""


def _first(ids: Sequence[str], room: int) -> str:
    """The first ids, as many as have room, but one at least."""
    shown = [quoted(ids[0])]
    for name in map(quoted, ids[1:SHOWN]):
        if len(", ".join([*shown, name])) > room:
            break
        shown.append(name)
    return ", ".join(shown) + ", ..." * (len(ids) > len(shown))


def match(results: Results, references: CaptionDataset, *, compared: bool = True) -> Matched:
    """Find each caption's image.

    Args:
        results: the captions.
        references: the images.
        compared: whether an image must have references.

    Raises:
        UsageError: no caption is of an image of the references.
    """
    names, by_name = own_ids(results.rows, references)
    position = references.positions()
    places = np.fromiter((position.get(name, -1) for name in names), np.int64, len(names))
    if (places < 0).all():
        raise UsageError(
            f"no caption of {results.name} is of an image of {references.name}: one names images like "
            f"{names[0]!r}, the other like {references[0].id!r}; make the ids agree."
        )
    ids = Texts.of(position)
    del position
    bare = np.fromiter((compared and not own for own in references.references.values()), np.bool_, len(ids))
    rows = np.flatnonzero(places >= 0)
    first = np.full(len(ids), -1, np.int64)
    first[places[rows][::-1]] = rows[::-1]  # of several the first is written last
    chosen = np.flatnonzero((first >= 0) & ~bare)
    unknown = Counter(names[row] for row in np.flatnonzero(places < 0).tolist())
    return Matched(
        Keyed(ids.take(chosen), _captions(results.rows).take(first[chosen])),
        by_name,
        [ids[place] for place in np.flatnonzero(first < 0).tolist()],
        list(unknown),
        _twice(names, places, unknown),
        [ids[place] for place in np.flatnonzero((first >= 0) & bare).tolist()],
    )


def _captions(rows: Sequence[Result]) -> Texts:
    return rows.captions if isinstance(rows, PackedRows) else Texts.of(row.caption for row in rows)


def _twice(names: Sequence[str], places: np.ndarray, unknown: Mapping[str, int]) -> list[str]:
    """The ids that come more than once, in the order in which they come."""
    several = np.append(np.bincount(places[places >= 0], minlength=1) > 1, True)  # the last is that of the unknown
    rows = np.flatnonzero(several[places]).tolist()
    return [name for name in dict.fromkeys(names[row] for row in rows) if unknown.get(name, 2) > 1]


def own_ids(rows: Sequence[Result], references: CaptionDataset) -> tuple[Sequence[str], bool]:
    """The id in the references of each caption's image, and whether file names gave it.

    Ids are compared first. If none is known, files are, and ids as files, which those of a captioned folder are: by name
    without ending, or by the number in COCO's names (``COCO_val2014_000000000042`` is 42); that number, or the name, may also
    be the id. Of images with one name, that counts whose folders agree the furthest, and of captions of an image those whose
    do. A caption of no known image keeps its own name.
    """
    given = Texts.of(str(row.file if row.image_id is None else row.image_id) for row in rows)
    if not references.positions().keys().isdisjoint(given):
        return given, False
    files = _Files(references)
    found = [files.closest([row.file or name, name]) for row, name in zip(rows, given, strict=True)]
    closest = dict[str, _Likeness]()
    for one in found:
        if one is not None:
            closest[one.id] = max(one.likeness, closest.get(one.id, one.likeness))
    own = [one.id if one is not None and one.likeness == closest[one.id] else None for one in found]
    return [known or name for known, name in zip(own, given, strict=True)], any(own)


class _Likeness(NamedTuple):
    """How much two paths agree, the names of their files being alike.

    Args:
        shared: names at their ends.
        below: names of the image's whole id, if the path ends in them; else 0.
        ending: whether the files' endings are equal, too.
    """

    shared: int
    below: int
    ending: bool


class _Found(NamedTuple):
    likeness: _Likeness
    id: str


class _Files:
    """The images of the references by the paths of their files."""

    def __init__(self, references: CaptionDataset) -> None:
        self._references, self._ids = references, references.positions()
        self._places: dict[str, list[int]] = {}
        for place, example in enumerate(references):
            self._places.setdefault(_upwards(example.image.name)[0], []).append(place)

    def find(self, path: str) -> _Found | None:
        """The image with the name and the folders of a path; none where two agree with it alike."""
        names = _upwards(path)
        whole = [os.path.basename(path), *names[1:]]  # the name may have no ending, but a dot
        known = next((tried for tried in (whole, names) if tried[0] in self._places), None)
        if known is None:
            number = next((name for name in (path, names[0]) if name in self._ids), None)
            return None if number is None else _Found(_Likeness(1, 0, False), number)
        found = sorted(self._compared(known, whole[0], place) for place in self._places[known[0]])
        alike = len(found) > 1 and found[-1].likeness == found[-2].likeness
        return None if alike else found[-1]

    def closest(self, paths: Iterable[str]) -> _Found | None:
        """The image that agrees the furthest with one of some paths, of those that agree alike the first."""
        found = [one for path in dict.fromkeys(paths) if (one := self.find(path)) is not None]
        return max(found, key=lambda one: one.likeness, default=None)

    def _compared(self, names: Sequence[str], file: str, place: int) -> _Found:
        example = self._references[place]
        image = example.image
        path = os.path.abspath(image.path) if isinstance(image, ImageFile) else image.name
        own = _upwards(example.id)
        below = len(own) if _shared(names, own) == len(own) else 0
        return _Found(_Likeness(_shared(names, _upwards(path)), below, os.path.basename(path) == file), example.id)


def _upwards(path: str) -> list[str]:
    """The names of a path from its end: of the file without ending, or its number in COCO's names, then of its folders."""
    *folders, file = path.replace(os.sep, "/").split("/")
    return [str(image_id(Path(file))), *reversed(folders)]


def _shared(names: Sequence[str], others: Sequence[str]) -> int:
    """How many names agree from the first on."""
    agree = map(eq, names, others)
    return sum(takewhile(bool, agree))


COPIED = 0.5
"""Share of captions found among the references of their own image that no captioner reaches: such captions are people's."""


def among_references(captions: Collection[str], references: Iterable[Sequence[str]]) -> str:
    """A sentence about captions that are among their own references, after a logged warning; empty below ``COPIED``.

    BLEU of captions scored against themselves is 100. Case, space and a final full stop do not count.

    Args:
        captions: one per image.
        references: those of each image.
    """
    found = sum(_plain(text) in map(_plain, own) for text, own in zip(captions, references, strict=True))
    if not captions or found < COPIED * len(captions):
        return ""
    told = f"{found} of {len(captions)} captions are among the references of their own image"
    logger.warning(
        "WARNING: %s, so BLEU, ROUGE-L, METEOR and CIDEr compare them with themselves: remove them from the references.",
        told,
    )
    return told


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(" .")
