"""A reward from a model that reads image and caption together."""

from __future__ import annotations

from torch import Tensor

from tellapart.listeners.matching import Matcher
from tellapart.types import Rollout


class Matching:
    """The positive logit of an image-text matching head, before the softmax; unbounded, higher is better.

    With BLIP-2 it is the similarity term of VLRM's reward (Dzabraev et al. 2024, section 3).

    Args:
        matcher: a frozen one.
    """

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        return self.matcher.match(rollout).to(rollout.image.device)
