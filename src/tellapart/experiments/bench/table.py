"""The table over everything as Markdown: means and spreads over seeds, who stands on the front, who dominates whom."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tellapart.evaluation.columns import markdown_cell
from tellapart.experiments.study_plan import Columns, Seeds

COLUMNS: Columns = {
    "listener_R@1": ("listener R@1", 1.0),
    "judge_R@1": ("judge R@1", 1.0),
    "exact_recall@1": ("exact_recall@1", 1.0),
    "CIDEr": ("CIDEr", 100.0),
    "METEOR": ("METEOR", 100.0),
    "Self-BLEU": ("Self-BLEU", 1.0),
    "rs5_mBLEU-4": ("mBLEU-4", 100.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "hallucinated": ("hallucinated", 1.0),
    "detail": ("detail", 1.0),
    "mean_length": ("words", 1.0),
}
"""Metric -> (heading, factor it is printed with)."""

PLANE = ("CIDEr", "exact_recall@1")
"""How much captions are like people's, and how well they tell images apart as far as they are true."""

TOGETHER = ("exact_recall@1", "CIDEr", "grammatical")
"""What a row must not lose to another in all of, to be undominated."""


@dataclass(frozen=True)
class Line:
    """One row of the table at one checkpoint.

    Args:
        name: of the row.
        metrics: one mapping a seed.
        seconds: CPU seconds of a training step, or none for a captioner that is not trained further.
    """

    name: str
    metrics: Sequence[Mapping[str, float]]
    seconds: float | None = None

    def over_seeds(self, key: str, factor: float = 1.0) -> Seeds | None:
        """A metric over seeds, or none where a seed lacks it."""
        values = [factor * one[key] for one in self.metrics if key in one]
        return Seeds(values) if values and len(values) == len(self.metrics) else None

    def mean(self, key: str) -> float:
        """Mean over seeds."""
        return statistics.fmean(one[key] for one in self.metrics)


def dominates(ours: Line, theirs: Line, keys: Sequence[str]) -> bool:
    """Whether one row's means are nowhere below another's and somewhere above; higher is better for every key."""
    pairs = [(ours.mean(key), theirs.mean(key)) for key in keys]
    return all(mine >= other for mine, other in pairs) and any(mine > other for mine, other in pairs)


def front(lines: Sequence[Line], keys: Sequence[str]) -> set[str]:
    """Names of the rows that none dominates."""
    return {line.name for line in lines if not any(dominates(other, line, keys) for other in lines)}


def table(lines: Sequence[Line]) -> str:
    """The rows in the order given.

    ``*`` marks the front of :data:`PLANE`; the last two columns count, over :data:`TOGETHER`, the rows that a row dominates and
    those that dominate it.
    """
    marked = front(lines, PLANE)
    headings = ["row", *(heading for heading, _ in COLUMNS.values()), "CPU s/step", "dominates", "dominated by"]
    text = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for line in lines:
        cells = [markdown_cell(line.name) + (" *" if line.name in marked else "")]
        cells += [_said(line.over_seeds(key, factor)) for key, (_, factor) in COLUMNS.items()]
        cells.append("-" if line.seconds is None else f"{line.seconds:.2f}")
        cells.append(str(sum(dominates(line, other, TOGETHER) for other in lines)))
        cells.append(str(sum(dominates(other, line, TOGETHER) for other in lines)))
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text)


def _said(found: Seeds | None) -> str:
    return "-" if found is None else str(found)
