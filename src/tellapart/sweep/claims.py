"""Expectations of a study, and the numbers over seeds that decide them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tellapart.evaluation.columns import describe


@dataclass(frozen=True)
class Claim:
    """An expectation, whether it holds, and the numbers that decided.

    Example:
        >>> ours, start = Seeds([71.0, 72.0]), Seeds([28.0, 27.0])
        >>> Claim("dico retrieves better than xe.", ours.above(start), f"{ours} against {start}.").to_markdown()
        '- **Holds**: dico retrieves better than xe. Measured: 71.5 ± 0.7 against 27.5 ± 0.7.'
    """

    text: str
    holds: bool
    evidence: str

    def to_markdown(self) -> str:
        """One line of a list."""
        return f"- **{'Holds' if self.holds else 'Does not hold'}**: {self.text} Measured: {self.evidence}"


@dataclass(frozen=True)
class Seeds:
    """One metric of one row over seeds, in the order of the seeds."""

    values: list[float]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.values)

    def __str__(self) -> str:
        spread = f" ± {statistics.stdev(self.values):.1f}" if len(self.values) > 1 else ""
        return f"{self.mean:.1f}{spread}"

    def above(self, other: Seeds) -> bool:
        """Whether even the lowest seed lies above the other row's highest."""
        return min(self.values) > max(other.values)


def over_seeds(metrics: Sequence[Mapping[str, float]], key: str, factor: float | None = None) -> Seeds | None:
    """A metric over seeds as tables print it (CIDEr 120 is 1.2).

    Args:
        metrics: one mapping per seed.
        key: the metric.
        factor: what it is multiplied by; None takes the metric's own scale.

    Returns:
        None where a seed lacks it, or there are none.
    """
    found = [one[key] for one in metrics if key in one]
    return Seeds([scale_of(key, factor) * value for value in found]) if found and len(found) == len(metrics) else None


def scale_of(key: str, factor: float | None = None) -> float:
    """What a metric is multiplied by in tables: a given factor, or its own scale."""
    return describe(key).scale if factor is None else factor


def said(found: Seeds | None) -> str:
    """A cell of a table of readings."""
    return "unreached" if found is None else str(found)


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Headings and rows of cells as Markdown; cells are printed as they are."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
