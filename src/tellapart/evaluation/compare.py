"""Several runs in one table, with how far each differs from the first and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tellapart.errors import printable
from tellapart.evaluation.aggregate import BLEU, BLEU_ROUNDING, Aggregate
from tellapart.evaluation.bootstrap import ROUNDING, p_values, percentile_interval, resampled_sums
from tellapart.evaluation.columns import Column, all_columns, explain_words, main_columns
from tellapart.evaluation.protocol import joint_line
from tellapart.evaluation.results import CHOSE, EvaluationResult, require_comparable
from tellapart.evaluation.sheet import Cell, Row, Sheet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True)
class Difference:
    """A run's metric minus the first run's, on the stored scale, with its bootstrap interval and two-sided p-value
    where they exist; and what it must exceed to be one."""

    value: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    rounding: float = ROUNDING

    @property
    def clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return (
            self.low is not None and self.high is not None and (self.low > self.rounding or self.high < -self.rounding)
        )

    def text(self, column: Column) -> str:
        """``+12.3 [+10.1, +14.5] p=0.002``, the difference alone where the rest does not exist."""
        parts = [column.signed(self.value)]
        if self.low is not None and self.high is not None:
            parts.append(f"[{column.signed(self.low)}, {column.signed(self.high)}]")
        if self.p_value is not None:
            parts.append(f"p={self.p_value:.3f}")
        return " ".join(parts)

    def to_json(self) -> dict[str, float | None]:
        """The numbers; a p-value only where there is one."""
        found = {"value": self.value, "low": self.low, "high": self.high}
        return found if self.p_value is None else found | {"p_value": self.p_value}


@dataclass(frozen=True)
class Comparison:
    """Runs measured under one protocol; ``differences[i]`` is of run i to run 0, by metric."""

    results: list[EvaluationResult]
    differences: list[dict[str, Difference]]
    confidence: float

    @property
    def protocol(self) -> str:
        """How all of them were measured."""
        return joint_line([result.protocol for result in self.results])

    @property
    def keys(self) -> list[str]:
        """Every metric that any run has, in the order first met."""
        return list(dict.fromkeys(key for result in self.results for key in result.metrics))

    def columns(self, *, every_metric: bool = False) -> list[Column]:
        """The metrics of the table: all, or the main ones."""
        return all_columns(self.keys) if every_metric else main_columns(self.keys)

    def print(self, console: Console, *, every_metric: bool = False) -> None:
        """Show the table, what its words and brackets mean, and how it was measured."""
        console.print(self.table(every_metric=every_metric))
        print_below(console, self.columns(every_metric=every_metric), self.caption())

    def caption(self) -> str:
        """The meaning of the differences, and the protocol."""
        percent = f"{100 * self.confidence:g} %"
        meaning = (
            f"Differences are to {self.results[0].name}, with a paired-bootstrap {percent} interval over images and its "
            "two-sided p-value (Koehn 2004)"
        )
        unsaid = (
            "metrics that sums over images do not determine (Self-BLEU, medians) have neither. Interval and p-value cover the "
            "choice of images, not the training seed."
        )
        several = f"{meaning}; {unsaid}" if len(self.results) > 1 else ""
        return "\n".join(filter(None, [several, self.measured()]))

    def measured(self) -> str:
        """The protocol, after a warning where the images chose a checkpoint."""
        return "\n".join(filter(None, [chosen_on(self.results), self.protocol]))

    def table(self, *, every_metric: bool = False) -> Table:
        """One row per metric, one column per run: its value, and below it the difference to the first run; of one run alone the
        intervals that were computed with it."""
        from rich.table import Table
        from rich.text import Text

        table = Table()
        table.add_column("metric")
        for result in self.results:
            table.add_column(Text(printable(result.name)), justify="right")
        alone = self.results[0].intervals if len(self.results) == 1 else {}
        if alone:
            table.add_column("95 % interval")
        for column in self.columns(every_metric=every_metric):
            row = [Text(printable(column.heading))]
            for result, differences in zip(self.results, self.differences, strict=True):
                cell = Text(column.text(result.metrics.get(column.key)))
                if column.key in differences:
                    difference = differences[column.key]
                    cell.append("\n" + difference.text(column), style=_style(difference, column))
                row.append(cell)
            if column.key in alone:
                row.append(Text(f"[{', '.join(map(column.text, alone[column.key]))}]", style="dim"))
            table.add_row(*row)
        return table

    def sheet(self, *, every_metric: bool = False) -> Sheet:
        """One row per run, one column per metric, for Markdown, LaTeX and CSV."""
        columns = self.columns(every_metric=every_metric)
        rows = []
        for result, differences in zip(self.results, self.differences, strict=True):
            rows.append(Row(result.name, [_cell(result, differences.get(column.key), column) for column in columns]))
        star = (
            f"* differs from {printable(self.results[0].name)}: the paired-bootstrap {100 * self.confidence:g} % interval of the "
            "difference over images leaves 0 out"
        )
        return Sheet(columns, rows, self.caption(), self.measured(), star)

    def to_json(self) -> dict[str, Any]:
        """Numbers on their stored scale, for machines."""
        runs = [
            {
                "name": result.name,
                "metrics": result.metrics,
                "difference": {k: d.to_json() for k, d in differences.items()},
            }
            for result, differences in zip(self.results, self.differences, strict=True)
        ]
        return {"protocol": self.protocol, "confidence": self.confidence, "runs": runs}


def compare_results(
    results: Sequence[EvaluationResult], *, samples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> Comparison:
    """Lay results side by side.

    Args:
        results: the first is what the others are compared to.
        samples: draws of the bootstrap.
        seed: of these draws.
        confidence: share of the draws inside an interval.

    Raises:
        UsageError: they were measured differently.
    """
    require_comparable(results)
    differences: list[dict[str, Difference]] = [{}]
    for result in results[1:]:
        differences.append(_differences(results[0], result, samples, seed, confidence))
    return Comparison(list(results), differences, confidence)


def _cell(result: EvaluationResult, difference: Difference | None, column: Column) -> Cell:
    value = result.metrics.get(column.key)
    return Cell(value) if difference is None else Cell(value, None, difference.text(column), difference.clear)


def _differences(
    first: EvaluationResult, other: EvaluationResult, samples: int, seed: int, confidence: float
) -> dict[str, Difference]:
    shared = [key for key in first.metrics if key in other.metrics]
    found = {key: Difference(other.metrics[key] - first.metrics[key]) for key in shared}
    paired = Aggregate(Aggregate(shared, first.per_image).keys, other.per_image).keys
    if not paired:
        return found
    a, b = Aggregate(paired, first.per_image), Aggregate(paired, other.per_image)
    row = {image_id: i for i, image_id in enumerate(other.captions)}
    rows = np.concatenate([a.rows, b.rows[[row[image_id] for image_id in first.captions]]], axis=1)
    sums = resampled_sums(rows, samples=samples, seed=seed)
    width = a.rows.shape[1]
    same = [b.keys.index(key) for key in a.keys]  # in b, others may lack an image
    draws = b(sums[:, width:])[:, same] - a(sums[:, :width])
    low, high = percentile_interval(draws, confidence)
    roundings = [BLEU_ROUNDING if key in BLEU else ROUNDING for key in a.keys]
    values = p_values(draws, rounding=np.array(roundings))
    ends = zip(a.keys, low.tolist(), high.tolist(), values.tolist(), roundings, strict=True)
    return found | {key: Difference(found[key].value, *rest) for key, *rest in ends if np.isfinite(rest).all()}


def print_below(console: Console, columns: Sequence[Column], caption: str) -> None:
    """Show what the headings' words mean and how a table was measured."""
    for text in filter(None, [explain_words(columns), caption]):
        console.print(printable(text), style="dim", highlight=False, markup=False)


def chosen_on(results: Sequence[EvaluationResult]) -> str:
    """A warning where the images chose the checkpoints of some runs by a metric; empty where they did not."""
    chosen = {result.name: result.details[CHOSE] for result in results if CHOSE in result.details}
    if not chosen:
        return ""
    metrics = ", ".join(dict.fromkeys(chosen.values()))
    return (
        f"NOTE: these images chose the checkpoint of {', '.join(chosen)} (by {metrics}), which flatters the numbers: measure on "
        "others with tellapart score RUN --split test."
    )


def _style(difference: Difference, column: Column) -> str:
    if not difference.clear or not column.better:
        return "dim"
    return "green" if difference.value * column.better > 0 else "red"
