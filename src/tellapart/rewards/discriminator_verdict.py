"""Whether a discriminator is of any use, in words."""

from __future__ import annotations

import logging

from torch import Tensor

logger = logging.getLogger(__name__)

BLIND, SATURATED = 0.55, 0.98
"""Below the first share of right answers a discriminator says nothing (chance is 0.5), above the second nothing new."""

FEWEST_ROWS = 100
"""Captions below which a share of right answers is too coarse to be judged: its deviation at chance is 5 points."""

WINDOW = 2000
"""Captions after which the accuracy during training is judged."""


def verdict(accuracy: float, rows: int, where: str) -> str | None:
    """What to do about a discriminator of this accuracy, or none while it is of use.

    Args:
        accuracy: share (0 to 1) of captions told right, half of them written by people and half generated.
        rows: captions it was measured on; of fewer than ``FEWEST_ROWS`` nothing is said.
        where: which captions these were, as the sentence is to call them.
    """
    if rows < FEWEST_ROWS or BLIND <= accuracy <= SATURATED:
        return None
    found = f"the discriminator tells {100 * accuracy:.1f} % of {where} right"
    if accuracy < BLIND:
        return (
            f"{found}, where guessing tells 50 %, so that its reward means nothing: pre-train it longer, choose the kind "
            "that reads the order of words (text), or leave it out."
        )
    return (
        f"{found}, so that its reward is about the same for every generated caption and teaches little: pre-train it "
        "for fewer steps, lower its learning rate, or look for what gives generated captions away (case, full stops, length)."
    )


class AccuracyWatch:
    """Follows the accuracy of a discriminator during training, and warns once of each thing that makes it useless.

    The accuracy is the mean of that on people's captions and that on generated ones, so their numbers may differ. Nothing
    that is computed depends on it. After resuming a run it starts again, so a warning may come again.
    """

    def __init__(self) -> None:
        self._real, self._fake, self._said = [0.0, 0], [0.0, 0], set[bool]()

    def add(self, real: Tensor, fake: Tensor) -> None:
        """Take in answers, 1 where right and 0 where wrong; judges whenever ``WINDOW`` captions have come together."""
        for count, right in ((self._real, real), (self._fake, fake)):
            count[0] += float(right.sum())
            count[1] += len(right)
        rows = int(self._real[1] + self._fake[1])
        if rows < WINDOW or not self._real[1] or not self._fake[1]:
            return
        accuracy = (self._real[0] / self._real[1] + self._fake[0] / self._fake[1]) / 2
        sentence = verdict(accuracy, rows, f"the last {rows} captions of the training")
        if sentence is not None and (accuracy < BLIND) not in self._said:
            self._said.add(accuracy < BLIND)
            logger.warning("%s", sentence)
        self._real, self._fake = [0.0, 0], [0.0, 0]
