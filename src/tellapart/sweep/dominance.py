"""Rows of a table over several metrics at once: which of them no other beats, and who beats whom."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tellapart.sweep.claims import Seeds, over_seeds

TOGETHER = ("exact_recall@1", "CIDEr", "grammatical")
"""What a row must not lose to another in all of, to be undominated."""


@dataclass(frozen=True)
class Line:
    """One row of a table at one checkpoint.

    Args:
        name: of the row.
        metrics: one mapping per seed.
        seconds: CPU seconds of a training step, or none for a captioner that is not trained further.
    """

    name: str
    metrics: Sequence[Mapping[str, float]]
    seconds: float | None = None

    def over_seeds(self, key: str, factor: float | None = None) -> Seeds | None:
        """A metric over seeds as tables print it, or none where a seed lacks it; None takes the metric's own scale."""
        return over_seeds(self.metrics, key, factor)

    def mean(self, key: str) -> float:
        """Mean over seeds."""
        return statistics.fmean(one[key] for one in self.metrics)


def dominates(ours: Line, theirs: Line, keys: Sequence[str] = TOGETHER) -> bool:
    """Whether one row's means are nowhere below another's and somewhere above; higher is better for every key."""
    pairs = [(ours.mean(key), theirs.mean(key)) for key in keys]
    return all(mine >= other for mine, other in pairs) and any(mine > other for mine, other in pairs)


def front(lines: Sequence[Line], keys: Sequence[str]) -> set[str]:
    """Names of the rows that none dominates."""
    return {line.name for line in lines if not any(dominates(other, line, keys) for other in lines)}


def unbeaten(lines: Sequence[Line], keys: Sequence[str]) -> list[str]:
    """Names of the rows that no other row is ahead of in most of the keys, by its means; often there is none."""

    def beats(ours: Line, theirs: Line) -> bool:
        return 2 * sum(ours.mean(key) > theirs.mean(key) for key in keys) > len(keys)

    return [line.name for line in lines if not any(beats(other, line) for other in lines)]
