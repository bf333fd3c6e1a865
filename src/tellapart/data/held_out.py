"""A part of unlabelled images that is kept from training, to measure on."""

from __future__ import annotations

import hashlib
from heapq import nsmallest

from tellapart.data.dataset import CaptionDataset
from tellapart.data.video import KEY_FRAME
from tellapart.errors import UsageError


def hold_out(dataset: CaptionDataset, count: int) -> tuple[CaptionDataset, CaptionDataset]:
    """The remaining training images, and ``count`` images that are held out, both in the order of the data.

    Which ones follows from the ids alone, so it is the same for every seed and method, and changes little when images are
    added. Key-frames of one video (ids that differ after ``#t=``) go together, except that the last one may be divided.

    Raises:
        UsageError: nothing would be left to train on.
    """
    if not 0 < count < len(dataset):
        raise UsageError(
            f"evaluation.held_out is {count}, but {dataset.name} holds {len(dataset)} images: hold out fewer of them, and at "
            "least 1."
        )
    held = nsmallest(count, ((_key(image_id), image_id, place) for place, image_id in enumerate(dataset.iterate_ids())))
    chosen = {place for _, _, place in held}
    rest = [place for place in range(len(dataset)) if place not in chosen]
    return dataset.take(rest), dataset.take(sorted(chosen))


def _key(image_id: str) -> bytes:
    """A hash that the frames of a video share."""
    return hashlib.sha256((image_id.rpartition(KEY_FRAME)[0] or image_id).encode()).digest()[:8]
