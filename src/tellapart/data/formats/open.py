"""Finding out what is at a place, and folders with a folder for each split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, get_args

from tellapart.data.dataset import Example
from tellapart.data.folder import is_image, require_images
from tellapart.data.formats import LOOKED_FOR, layout
from tellapart.data.formats.base import Layout, Place
from tellapart.data.formats.clip_folder import ClipFolder
from tellapart.data.formats.names import Readable
from tellapart.data.formats.splits import SPLIT_NAMES, UNNAMED, in_order
from tellapart.data.unlabelled.source import NAME, Unlabelled
from tellapart.data.video import EXTENSIONS as VIDEOS
from tellapart.errors import UsageError

SEVERAL = frozenset({"images", ".csv", ".jsonl", ".ndjson", ".parquet", ".tar", ".tsv", *VIDEOS})
"""Kinds of files of which a pattern may match several."""


class Source(Protocol):
    """Data of any format, opened."""

    place: Place
    divided: bool

    def splits(self) -> list[str]:
        """The splits there are."""
        ...

    def read(self, splits: Sequence[str]) -> Sequence[Example]:
        """Their images."""
        ...


class SplitFolders:
    """A folder with subfolders named like splits, each of which is read by its own look.

    Args:
        place: the folder.
        format: the format of all of them, if it is known.
    """

    divided = True
    has_columns = has_caption_files = True  # as the formats in it may have

    def __init__(self, place: Place, format: str | None) -> None:
        self.place, self.format = place, format

    def splits(self) -> list[str]:
        """The names of the subfolders."""
        return _split_folders(self.place)

    def read(self, splits: Sequence[str]) -> list[Example]:
        """Their images, folder by folder."""
        return [example for split in splits for example in self._read(split)]

    def _read(self, split: str) -> Sequence[Example]:
        inner = _open_one(self.place.inside(split), self.format)
        return inner.read(inner.splits())


class Images:
    """Image files that a path or pattern names, and those in folders that a pattern names; their ids are their paths as given.

    They have no captions.

    Args:
        place: the files.
    """

    divided = False
    holds_images = True

    def __init__(self, place: Place) -> None:
        self.place = place

    def splits(self) -> list[str]:
        """They count as training data."""
        return [UNNAMED]

    def read(self, splits: Sequence[str]) -> list[Example]:
        """The images."""
        paths = [path for given in map(Path, self.place.listed) for path in self._files(given)]
        return [Example(path.as_posix(), self.place.picture(path)) for path in dict.fromkeys(paths)]

    def _files(self, path: Path) -> list[Path]:
        return require_images(path) if path.is_dir() else [path]


def open_source(place: Place, format: str | None) -> Source:
    """The data at a place.

    Args:
        place: where.
        format: how to read it; None tells by its look.

    Raises:
        UsageError: there is no such format, it cannot be read as this one, or it looks like none.
    """
    if format is not None and format not in get_args(Readable):
        raise UsageError(f"format is {format!r}: choose one of {', '.join(get_args(Readable))}.")
    if format == NAME or (format is None and Unlabelled.looks_like(place) and not ClipFolder.looks_like(place)):
        return Unlabelled(place)
    if place.files is None and len(place.listed) == 1:
        place = replace(place, given=place.listed[0])
    if format is None and _are_images(place):
        return Images(place)
    for kind in map(layout, [format] if format else LOOKED_FOR):
        if kind.spans_splits and kind.looks_like(place):
            return kind(place)
    if place.is_folder and _split_folders(place):
        return SplitFolders(place, format)
    return _open_one(place, format)


def _open_one(place: Place, format: str | None) -> Layout:
    """Data without a folder for each split."""
    if format is not None:
        kind = layout(format)
        kind.require(place)
        return kind(place)
    for kind in map(layout, LOOKED_FOR):
        if kind.looks_like(place):
            return kind(place)
    if place.path.suffix.lower() == ".json":
        raise UsageError(
            f"{place.path} is not a known list of images and captions, such as a Karpathy dataset file or COCO annotations: "
            "convert it, or name its --format."
        )
    raise UsageError(
        f"{place.path} is neither a folder nor an image nor a file of images or captions (.json, .jsonl, .csv, .tsv, .parquet, "
        ".token, .tar): name one of these."
    )


def _are_images(place: Place) -> bool:
    """Whether files are images by their names.

    Raises:
        UsageError: a pattern matches files of several kinds.
    """
    if place.is_folder:
        return False
    kinds = {_kind(name) for name in place.listed}
    if len(kinds) > 1:
        raise UsageError(
            f"{place.given} matches files of several kinds ({', '.join(sorted(kinds))}): give a pattern for each kind."
        )
    (kind,) = kinds
    if len(place.listed) > 1 and kind not in SEVERAL:
        raise UsageError(
            f"{place.given} matches {len(place.listed)} files {kind}: name one, as only images and files "
            f"{', '.join(sorted(SEVERAL - {'images'}))} may be several."
        )
    return kind == "images"


def _kind(name: str) -> str:
    several = is_image(name) or (not os.path.isfile(name) and os.path.isdir(name))
    return "images" if several else os.path.splitext(name)[1].lower() or "no ending"


def _split_folders(place: Place) -> list[str]:
    return in_order(name for name in place.names if name in SPLIT_NAMES and (place.path / name).is_dir())
