"""A reward for captions of the length that was asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner
from tellapart.errors import UsageError
from tellapart.lengths import WordRange, count_words
from tellapart.types import Rollout


class LengthDistance:
    """Minus the words that a caption has too few or too many: 0 within the asked range, 1 less per word outside it.

    The range is the length bucket that each caption was asked for, or one range for all. Words are counted as
    ``count_words`` does; punctuation and the end token are not words. The reward does not depend on the image:
    mix it with one that does.

    Args:
        captioner: what is trained; it has length buckets unless ``words`` are given.
        words: one range for all captions, such as 8-15, 8- (8 or more) or 8; null takes the bucket that each was asked for.

    Raises:
        UsageError: ``words`` is not a range, or is null and the captioner has no length buckets.

    Example:
        >>> reward = LengthDistance(captioner, words="8-15")
        >>> reward(captioner.tokenize(batch, ["a red circle"], torch.tensor([0])))  # three words
        tensor([-5.])
    """

    def __init__(self, captioner: Captioner, *, words: str | None = None) -> None:
        self.buckets, self.words = captioner.buckets, None if words is None else WordRange.parse(words)
        if words is None and self.buckets is None:
            raise UsageError(
                "the reward length needs a length to compare with: set its words, such as 8-15, or captioner.length_buckets."
            )

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, 0 or below.

        Raises:
            UsageError: the captions were asked for no length, and there is no range for all.
        """
        lengths = [count_words(text) for text in rollout.texts]
        distances = [asked.distance(length) for asked, length in zip(self._asked(rollout), lengths, strict=True)]
        return -torch.tensor(distances, dtype=torch.float32, device=rollout.image.device)

    def _asked(self, rollout: Rollout) -> list[WordRange]:
        if self.words is not None:
            return [self.words] * len(rollout)
        if self.buckets is None or rollout.bucket is None:
            raise UsageError(
                "the reward length reads captions that were asked for no length: set its words, such as 8-15."
            )
        return [self.buckets.range(bucket) for bucket in rollout.bucket.tolist()]
