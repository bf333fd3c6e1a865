"""VQAScore of captions by a model that sees the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tellapart.errors import UsageError
from tellapart.evaluation.measures import Measured
from tellapart.evaluation.scorers import References, in_words

if TYPE_CHECKING:
    from tellapart.rewards.vqa_score import VqaScoreMatcher


class VqaScorer:
    """``VQAScore``: mean P(Yes) over captions, 0 to 1, printed times 100 (Lin et al. 2024).

    Args:
        matcher: knows the images by id; see ``VqaScoreMatcher`` for source and pitfalls.

    Example:
        >>> VqaScorer(matcher)({"42": "a red car"}, {})[0]
        {'VQAScore': 0.93}
    """

    name = "VQAScore"

    def __init__(self, matcher: VqaScoreMatcher) -> None:
        self.matcher = matcher
        self._described = matcher.describe()
        self.measured_by = {self.name: in_words(self._described)}

    def __call__(self, captions: Mapping[str, str], references: References) -> Measured:
        """The metric, and a column of the same name.

        Raises:
            UsageError: the model gives something that is not a number.
        """
        logits = self.matcher.match_ids(list(captions), [[text] for text in captions.values()])
        scores = self.matcher.score(torch.cat(logits)).double()
        if not bool(scores.isfinite().all()):
            raise UsageError(
                f"the model {self.matcher.source} gives probabilities that are not numbers: its weights are damaged or its "
                "precision too low; fetch it again, or load it in float32."
            )
        return {self.name: float(scores.mean())}, {self.name: scores.tolist()}

    def describe(self, captions: Sequence[str]) -> dict[str, Any]:
        """The model with its question; it cuts no caption."""
        return self._described | {"truncated": 0.0}
