"""A reward for true captions: the log-probability of a match."""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.listeners.pairs import PairMatcher, require_probabilities
from tellapart.ranges import NegativeFloat, in_range
from tellapart.types import Rollout


class Truth:
    """``max(log p(true | image, caption), floor)`` in nats, from ``floor`` to 0.

    p is the softmax of a matcher's two logits: of the matching head of BLIP or BLIP-2 its probability of a match, of a model
    that is asked its share of *yes* among yes and no, of a late-interaction listener its own probability. The logarithm makes
    a caption that is surely false cost more than any detail gains, where the positive logit itself
    (``Matching``) still rewards further true words. Alone, this reward shortens captions
    to what is always true: add ``Likelihood`` or another reward for detail.

    Args:
        matcher: a frozen matching head, late-interaction listener, or model that is asked a question.
        floor: the lowest value, below 0, so that one false caption does not outweigh a batch.

    Raises:
        ValueError: ``floor`` is not below 0.
        UsageError: the matcher is a dual encoder.

    Example:
        >>> reward = Truth(ItmMatcher.from_pretrained("Salesforce/blip-itm-base-coco"))
        >>> Mix({"truth": reward, "likelihood": Likelihood(clip, dataset.ids)}, {"likelihood": 0.25})
    """

    @in_range
    def __init__(self, matcher: PairMatcher, *, floor: NegativeFloat = -8.0) -> None:
        require_probabilities(matcher, "the matcher of reward truth")
        self.matcher, self.floor = matcher, floor

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        logits = self.matcher.rollout_logits(rollout)
        return torch.log_softmax(logits, dim=1)[:, 1].clamp(min=self.floor).to(rollout.image.device)
