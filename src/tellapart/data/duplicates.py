"""Images of one data set that look the same, by id."""

from __future__ import annotations

from tellapart.data.dataset import CaptionDataset
from tellapart.data.inspect_all import inspect_all
from tellapart.data.phash import near_duplicates


def look_alikes(dataset: CaptionDataset, *, num_workers: int | None = None) -> list[list[str]]:
    """Groups of ids whose pictures look the same: copies that were scaled, compressed again or made a little brighter.

    Every image is decoded once, and what was found is remembered (:mod:`~tellapart.data.inspection_cache`). Looks are
    compared in greys (:mod:`~tellapart.data.phash`): this is for photos; drawings that differ in a colour or a small part
    count as copies.

    Args:
        dataset: the images; those that cannot be read are in no group.
        num_workers: processes that decode; None takes one for each processor, 0 decodes in this one.
    """
    inspected = inspect_all([example.image for example in dataset], num_workers=num_workers)
    ids = dataset.ids
    return [[ids[i] for i in group] for group in near_duplicates([found.signature for found in inspected])]
