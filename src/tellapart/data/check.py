"""Faults of data, found before a training: broken images, empty captions, pictures that splits share."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tellapart.data.center_crop import stored
from tellapart.data.clips import ArrayClip
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ArrayImage
from tellapart.data.inspection import Inspected, inspect_all
from tellapart.data.phash import near_duplicates
from tellapart.errors import UsageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Spread:
    """The least, the mean and the most of some numbers; 0 where there are none."""

    least: int = 0
    mean: float = 0.0
    most: int = 0

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Spread:
        """That of these numbers."""
        return cls(min(numbers), sum(numbers) / len(numbers), max(numbers)) if numbers else cls()

    def text(self) -> str:
        """As a table prints it."""
        if self.most == 0:
            return "-"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}, mean {self.mean:.1f}"


@dataclass(frozen=True)
class Broken:
    """An image that cannot be used, and the sentence that says why."""

    id: str
    name: str
    why: str


@dataclass(frozen=True)
class Odd:
    """A usable image that is unusual in some way, such as ``CMYK`` or ``turned by EXIF``."""

    id: str
    name: str
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """One image of a group of duplicates."""

    split: str
    id: str
    name: str


@dataclass(frozen=True)
class Group:
    """Images that are the same: byte for byte (``exact``), or only by their looks."""

    exact: bool
    members: tuple[Member, ...]

    @property
    def splits(self) -> list[str]:
        """The splits it reaches into."""
        return list(dict.fromkeys(member.split for member in self.members))


@dataclass(frozen=True)
class SplitReport:
    """One split.

    Args:
        images: number of images, broken ones included.
        captions: number of captions that are not empty.
        captions_per_image: of images that have captions.
        words_per_caption: words between spaces.
        without_captions: images without a caption that is not empty.
        empty_captions: number of captions that are empty or only space.
        empty_captions_of: ids of their images.
        broken: images that cannot be used.
        repeated_ids: ids that more than one image has.
        kinds: unusual things -> number of images.
        odd: usable images with at least one of them.
        exact_duplicates: images that repeat another one of the split byte for byte.
        near_duplicates: images that look like another one of the split, other than these.
    """

    images: int
    captions: int
    captions_per_image: Spread
    words_per_caption: Spread
    without_captions: int
    empty_captions: int
    empty_captions_of: tuple[str, ...]
    broken: tuple[Broken, ...]
    repeated_ids: tuple[str, ...]
    kinds: Mapping[str, int]
    odd: tuple[Odd, ...]
    exact_duplicates: int
    near_duplicates: int


@dataclass(frozen=True)
class Report:
    """Findings, by split.

    Args:
        splits: name -> what it holds.
        groups: images that are the same, largest groups first.
    """

    splits: Mapping[str, SplitReport]
    groups: tuple[Group, ...] = field(default=())

    @property
    def leaks(self) -> list[Group]:
        """Groups that reach into more than one split."""
        return [group for group in self.groups if len(group.splits) > 1]

    @property
    def clean(self) -> bool:
        """Whether there is nothing to repair: no broken image, empty caption or id named twice, no image in two splits."""
        return not any(self.faults.values())

    @property
    def faults(self) -> dict[str, int]:
        """What is to be repaired -> how many."""
        splits = list(self.splits.values())
        return {
            "broken images": sum(len(split.broken) for split in splits),
            "empty captions": sum(split.empty_captions for split in splits),
            "ids named twice": sum(len(split.repeated_ids) for split in splits),
            "groups of images in more than one split": len(self.leaks),
        }

    @property
    def verdict(self) -> str:
        """What is to be repaired, in one sentence."""
        found = [f"{what} ({number:,})" for what, number in self.faults.items() if number]
        return f"to repair: {', '.join(found)}." if found else "nothing to repair."

    def counts(self) -> list[list[str]]:
        """A table of numbers as text: the names of the splits, then one row per kind of number."""
        columns = list(self.splits.values())
        shown = {
            "images": [f"{s.images:,}" for s in columns],
            "captions": [f"{s.captions:,}" for s in columns],
            "captions per image": [s.captions_per_image.text() for s in columns],
            "words per caption": [s.words_per_caption.text() for s in columns],
            "images without captions": [f"{s.without_captions:,}" for s in columns],
            "empty captions": [f"{s.empty_captions:,}" for s in columns],
            "broken images": [f"{len(s.broken):,}" for s in columns],
            "ids named twice": [f"{len(s.repeated_ids):,}" for s in columns],
            "exact duplicates": [f"{s.exact_duplicates:,}" for s in columns],
            "near duplicates": [f"{s.near_duplicates:,}" for s in columns],
        }
        for kind in dict.fromkeys(kind for split in columns for kind in split.kinds):
            shown[f"usable, but: {kind}"] = [f"{split.kinds.get(kind, 0):,}" for split in columns]
        return [["", *self.splits], *([name, *cells] for name, cells in shown.items())]


def check(splits: Mapping[str, Sequence[Example]], *, num_workers: int | None = None) -> Report:
    """Read every image and look at every caption.

    Args:
        splits: name -> its images, empty captions included.
        num_workers: processes that decode images; None takes one for each processor, 0 decodes in this one.
    """
    placed = [(name, example) for name, examples in splits.items() for example in examples]
    inspected = inspect_all([example.image for _, example in placed], num_workers=num_workers)
    members = [Member(split, example.id, example.image.name) for split, example in placed]
    groups = _groups(members, inspected)
    reports, start = {}, 0
    for name, examples in splits.items():
        reports[name] = _split_report(name, examples, inspected[start : start + len(examples)], groups)
        start += len(examples)
    return Report(reports, tuple(groups))


def _split_report(
    name: str, examples: Sequence[Example], inspected: Sequence[Inspected], groups: Sequence[Group]
) -> SplitReport:
    captions = [[text for text in example.references if text.strip()] for example in examples]
    given = sum(len(example.references) for example in examples)
    repeated = Counter[bool]()
    for group in groups:
        repeated[group.exact] += max(0, sum(member.split == name for member in group.members) - 1)
    return SplitReport(
        images=len(examples),
        captions=sum(map(len, captions)),
        captions_per_image=Spread.of([len(texts) for texts in captions if texts]),
        words_per_caption=Spread.of([len(text.split()) for texts in captions for text in texts]),
        without_captions=sum(not texts for texts in captions),
        empty_captions=given - sum(map(len, captions)),
        empty_captions_of=tuple(
            example.id
            for example, texts in zip(examples, captions, strict=True)
            if len(texts) < len(example.references)
        ),
        broken=tuple(
            Broken(example.id, example.image.name, found.broken)
            for example, found in zip(examples, inspected, strict=True)
            if found.broken is not None
        ),
        repeated_ids=tuple(name for name, count in Counter(example.id for example in examples).items() if count > 1),
        kinds=dict(Counter(kind for found in inspected for kind in found.kinds).most_common()),
        odd=tuple(
            Odd(example.id, example.image.name, found.kinds)
            for example, found in zip(examples, inspected, strict=True)
            if found.kinds and found.broken is None
        ),
        exact_duplicates=repeated[True],
        near_duplicates=repeated[False],
    )


def _groups(members: Sequence[Member], inspected: Sequence[Inspected]) -> list[Group]:
    """Images of equal bytes, and one each of different bytes that look the same."""
    places: dict[str, list[int]] = {}
    for i, found in enumerate(inspected):
        if found.broken is None:
            places.setdefault(found.content, []).append(i)
    groups = [Group(True, tuple(members[i] for i in same)) for same in places.values() if len(same) > 1]
    copies = list(places.values())
    for alike in near_duplicates([inspected[same[0]].signature for same in copies]):
        # of each file's copies, one per split: the others are reported as exact duplicates
        firsts = [
            next(i for i in copies[j] if members[i].split == split)
            for j in alike
            for split in _splits(copies[j], members)
        ]
        groups.append(Group(False, tuple(members[i] for i in firsts)))
    return sorted(groups, key=lambda group: (-len(group.members), not group.exact))


def _splits(places: Sequence[int], members: Sequence[Member]) -> list[str]:
    return list(dict.fromkeys(members[i].split for i in places))


def usable(
    dataset: CaptionDataset, *, num_workers: int | None = None, tell: bool = True
) -> tuple[CaptionDataset, list[tuple[str, str]]]:
    """The data without the images that cannot be read; every image is decoded once, and remembered.

    The order of the others stays, so that what a training sees still follows from its seed alone.

    Args:
        dataset: the images.
        num_workers: processes that decode; None takes one for each processor, 0 decodes in this one.
        tell: log the reasons.

    Returns:
        The data set, and id and reason of every image that was left out.

    Raises:
        UsageError: no image can be read.
    """
    checked = [
        e for e in dataset if not isinstance(stored(e.image), ArrayImage | ArrayClip)
    ]  # those in memory are decoded already
    inspected = inspect_all([example.image for example in checked], num_workers=num_workers)
    reasons = {e.id: found.broken for e, found in zip(checked, inspected, strict=True) if found.broken is not None}
    if not reasons:
        return dataset, []
    for reason in reasons.values() if tell else ():
        logger.warning("skipped: %s", reason)
    kept = [example for example in dataset if example.id not in reasons]
    if not kept:
        raise UsageError(
            f"none of the {len(dataset)} images of {dataset.name} can be read: {next(iter(reasons.values()))}"
        )
    return CaptionDataset(kept, name=dataset.name), list(reasons.items())
