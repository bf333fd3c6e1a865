"""Groups of look-alikes: does a caption suit its own image rather than the images that people set against it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GroupAccuracy:
    """How often an image's own score is the highest of its group.

    Args:
        groups: percent of images whose caption scores higher with them than with every look-alike.
        pairs: percent of look-alikes that score lower, each image counting once.
        chance: percent of ``groups`` that random scores reach.
        images: number of images that have a look-alike; only these count.
    """

    groups: float
    pairs: float
    chance: float
    images: int


def group_accuracy(own: Sequence[float], others: Sequence[Sequence[float]]) -> GroupAccuracy:
    """Accuracy among look-alikes that are given, not retrieved: those of which a person wrote that their sentence is false.

    A tie counts as wrong. It differs from retrieval (``tellapart.metrics.retrieval``), where any image of a gallery is a rival
    and many of them suit the caption, too.

    Args:
        own: N scores of a caption with its own image, higher is better, on any scale.
        others: for each of them the scores of the same caption with the look-alikes of its image, perhaps none.

    Raises:
        ValueError: lengths differ, or no image has a look-alike.

    Example:
        >>> group_accuracy([2.0, 1.0], [[0.5, 1.5], [3.0]]).groups
        50.0
    """
    counted = [(score, rivals) for score, rivals in zip(own, others, strict=True) if len(rivals)]
    if not counted:
        raise ValueError("no image has a look-alike")
    lower = [[score > rival for rival in rivals] for score, rivals in counted]
    number = len(counted)
    return GroupAccuracy(
        groups=100.0 * sum(all(won) for won in lower) / number,
        pairs=100.0 * sum(sum(won) / len(won) for won in lower) / number,
        chance=100.0 * sum(1 / (1 + len(won)) for won in lower) / number,
        images=number,
    )
