"""The names of splits: which folders and files are one, and what a wanted split is called in the data at hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

UNNAMED = "train"
"""What data without a division into splits count as, as in Hugging Face's loaders."""

OTHER_NAMES = {
    "val": ("validation", "valid", "validate", "dev"),
    "validation": ("val", "valid", "validate", "dev"),
}
"""A split -> other names of it, tried in turn."""

TOGETHER = {"train": ("train", "restval")}
"""COCO's ``restval`` images, the rest of its validation set, count as training images in every paper since."""

SPLIT_NAMES = ("train", "restval", "val", "validation", "valid", "validate", "dev", "test")
"""Names of folders and files that are taken for splits."""

SPLIT_IN_NAME = re.compile(rf"(?:^|[_.-])({'|'.join(SPLIT_NAMES)})(?:20\d\d)?(?=$|[_.-])")


def in_order(names: Iterable[str]) -> list[str]:
    """Splits in their usual order, unknown ones last."""
    known = {name: place for place, name in enumerate(SPLIT_NAMES)}
    return sorted(set(names), key=lambda name: (known.get(name, len(known)), name))


def members(wanted: str, there: Sequence[str]) -> list[str]:
    """Those of the splits that ``wanted`` means: itself and what counts to it, else another name of it, else none."""
    chosen = [name for name in TOGETHER.get(wanted, (wanted,)) if name in there]
    if chosen:
        return chosen
    return next(([name] for name in OTHER_NAMES.get(wanted, ()) if name in there), [])


def split_in(stem: str) -> str | None:
    """The split that a file's name names: ``captions_train2017`` -> ``train``; None if it names none, or two."""
    found = set(SPLIT_IN_NAME.findall(stem))
    return found.pop() if len(found) == 1 else None
