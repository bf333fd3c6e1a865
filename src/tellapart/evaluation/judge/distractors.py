"""The other image of *which image*: a mined neighbour, or any other picture."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.evaluation.judge.keyed import drawn_number
from tellapart.listeners.neighbours import Neighbours


def nearest_others(neighbours: Neighbours, dataset: CaptionDataset, ids: Sequence[str]) -> dict[str, str]:
    """The nearest neighbour of each image that the data hold.

    Raises:
        UsageError: an image has none.
    """
    found = {}
    for image_id, near in zip(ids, neighbours.of(ids), strict=True):
        held = [other for other in near if other in dataset.position and other != image_id]
        if not held:
            raise UsageError(
                f"none of the {len(near)} neighbours of image {image_id!r} is in {dataset.name}: mine its own images."
            )
        found[image_id] = held[0]
    return found


def random_others(dataset: CaptionDataset, ids: Sequence[str], *, seed: int) -> dict[str, str]:
    """Any other image with other content for each image.

    Raises:
        UsageError: there is none, or an image cannot be read.
    """
    found = {}
    for image_id in ids:
        own = dataset[dataset.position[image_id]].image.fingerprint()
        start = drawn_number(seed, "distractor", image_id) % len(dataset)
        turned = (dataset[(start + step) % len(dataset)] for step in range(len(dataset)))
        other = next((e.id for e in turned if e.id != image_id and e.image.fingerprint() != own), None)
        if other is None:
            raise UsageError(f"{dataset.name} has no other picture than that of image {image_id!r}: give more images.")
        found[image_id] = other
    return found
