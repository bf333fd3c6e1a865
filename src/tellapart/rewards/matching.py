"""A reward from a model that reads image and caption together."""

from __future__ import annotations

from torch import Tensor

from tellapart.listeners.matching import Matcher
from tellapart.types import Rollout


class Matching:
    """The matcher's score of each caption and its image, on the matcher's own scale; higher is better.

    With the matching head of BLIP-2, whose score is the positive logit before the softmax, it is the similarity term of
    VLRM's reward (Dzabraev et al. 2024, section 3).

    Args:
        matcher: a frozen one: a matching head, a dual encoder, or a model that is asked a question.
    """

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        return self.matcher.match(rollout).to(rollout.image.device)
