"""Under which id a set of features has an image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tellapart.captioning.records import Item
from tellapart.data.clips import fingerprints
from tellapart.data.features.base import FeatureInputs
from tellapart.data.features.store import FeatureStore
from tellapart.errors import UsageError
from tellapart.progress import track

if TYPE_CHECKING:
    from tellapart.data.features.base import FeatureSet


def feature_id(features: FeatureSet, item: Item) -> str:
    """The id that features have an image under: its own; of a folder's image also its path below the folder, as ``tellapart
    features`` names it, or that without the ending, as folders of arrays do.

    A path below one folder may be that of another picture below another folder. A store knows its pictures by their content;
    other sets hold nothing of them.

    Raises:
        UsageError: the features under that id are another picture's, or may be.
    """
    below = PurePosixPath(item.relative)
    known = next((name for name in (item.id, item.relative, str(below.with_suffix(""))) if name in features), None)
    path = item.path
    if path is None or not _is_named_by(path, item.id):
        return known or item.id
    if isinstance(features, FeatureStore):
        return _of_picture(features, path, known or item.id)
    if known is not None:
        _require_alone(features, path, known)
    return known or item.id


def with_features_known(items: Sequence[Item], features: FeatureSet) -> list[Item]:
    """The images with the hash of their features: where it changed since, a run that is resumed draws their captions again."""
    inputs = FeatureInputs(features)

    def known(item: Item) -> Item:
        try:
            return replace(item, features=inputs.fingerprint(feature_id(features, item)))
        except UsageError:  # reading the image tells
            return item

    return [known(item) for item in track(items, "reading features")]


def _is_named_by(path: Path, name: str) -> bool:
    """Whether an image that is there is named by its path, or the end of it, and not by an id of some data set."""
    parts = PurePosixPath(name).parts
    return path.parts[-len(parts) :] == parts and path.is_file()


def _of_picture(store: FeatureStore, path: Path, known: str) -> str:
    own = fingerprints(path)
    if known in store and store.fingerprint(known) in own:
        return known
    found = store.find(own)
    if found is None and known in store:
        raise UsageError(
            f"{store.name} has features of another picture than {path} under {known!r}: compute those of this one (tellapart "
            "features), or name the folder that they are of."
        )
    return found or known


def _require_alone(features: FeatureSet, path: Path, known: str) -> None:
    parts = Path(os.path.abspath(path)).parts[1:]
    shortest = len(PurePosixPath(known).parts) + 1
    tails = [PurePosixPath(*parts[-count:]) for count in range(shortest, len(parts) + 1)]
    other = next((str(name) for tail in tails for name in (tail, tail.with_suffix("")) if str(name) in features), None)
    if other is not None:
        raise UsageError(
            f"{features.name} has features of {known!r} and of {other!r}, and {path} may be either: name the folder whose images "
            "they are of."
        )
