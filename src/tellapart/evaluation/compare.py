"""Several runs in one table, with how far each differs from the first and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tellapart.evaluation.bootstrap import paired_bootstrap
from tellapart.evaluation.columns import Column, all_columns, main_columns
from tellapart.evaluation.results import EvaluationResult, find_result, require_comparable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True)
class Difference:
    """A run's metric minus the first run's, on the stored scale, with its bootstrap interval where one exists."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def text(self, column: Column) -> str:
        """``+12.3 [+10.1, +14.5]``, without brackets where there is no interval."""
        if self.low is None or self.high is None:
            return column.signed(self.value)
        return f"{column.signed(self.value)} [{column.signed(self.low)}, {column.signed(self.high)}]"


@dataclass(frozen=True)
class Comparison:
    """Runs measured under one protocol; ``differences[i]`` is of run i to run 0, by metric."""

    results: list[EvaluationResult]
    differences: list[dict[str, Difference]]
    confidence: float

    @property
    def protocol(self) -> str:
        """How all of them were measured."""
        return next((r for r in self.results if r.protocol.decoding), self.results[0]).protocol.line()

    @property
    def keys(self) -> list[str]:
        """Every metric that any run has, in the order first met."""
        return list(dict.fromkeys(key for result in self.results for key in result.metrics))

    def print(self, console: Console, *, every_metric: bool = False) -> None:
        """Show the table, what the brackets mean and how it was measured."""
        console.print(self.table(every_metric=every_metric))
        console.print(self.caption(), style="dim", highlight=False, markup=False)

    def caption(self) -> str:
        """What the differences mean, and the protocol."""
        percent = f"{100 * self.confidence:g} %"
        meaning = f"Differences are to {self.results[0].name}, with a paired-bootstrap {percent} interval over images"
        unsaid = "metrics of the whole set (BLEU, Self-BLEU) have none, and it knows nothing of training seeds."
        return f"{meaning}; {unsaid}\n{self.protocol}" if len(self.results) > 1 else self.protocol

    def table(self, *, every_metric: bool = False) -> Table:
        """One row a metric, one column a run: its value, and below it the difference to the first run."""
        from rich.table import Table
        from rich.text import Text

        table = Table()
        table.add_column("metric")
        for result in self.results:
            table.add_column(Text(result.name), justify="right")
        for column in all_columns(self.keys) if every_metric else main_columns(self.keys):
            row = [Text(column.label + {1: " ↑", -1: " ↓", 0: ""}[column.better])]
            for result, differences in zip(self.results, self.differences, strict=True):
                cell = Text(column.text(result.metrics.get(column.key)))
                if column.key in differences:
                    difference = differences[column.key]
                    cell.append("\n" + difference.text(column), style=_style(difference, column))
                row.append(cell)
            table.add_row(*row)
        return table

    def to_markdown(self, *, every_metric: bool = False) -> str:
        """One row a run, one column a metric, for a README or a paper draft."""
        columns = all_columns(self.keys) if every_metric else main_columns(self.keys)
        lines = ["| run | " + " | ".join(_cell(column.label) for column in columns) + " |"]
        lines.append("|---" * (len(columns) + 1) + "|")
        for result, differences in zip(self.results, self.differences, strict=True):
            cells = [_cell(result.name)]
            for column in columns:
                difference = differences.get(column.key)
                extra = f" ({difference.text(column)})" if difference else ""
                cells.append(column.text(result.metrics.get(column.key)) + extra)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", *self.caption().splitlines()]) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Numbers on their stored scale, for machines."""
        runs = [
            {"name": result.name, "metrics": result.metrics, "difference": {k: vars(d) for k, d in differences.items()}}
            for result, differences in zip(self.results, self.differences, strict=True)
        ]
        return {"protocol": self.protocol, "confidence": self.confidence, "runs": runs}


def compare(
    runs: Sequence[Path], *, protocol: str | None = None, samples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> Comparison:
    """Lay evaluated runs side by side.

    Args:
        runs: folders of runs; the first is what the others are compared to.
        protocol: which evaluation to take where a run has several (its folder's name under ``eval``).
        samples: draws of the bootstrap.
        seed: of these draws.
        confidence: share of the draws inside an interval.

    Raises:
        UsageError: a run has no such evaluation, or they were measured differently.
    """
    results = [find_result(Path(run), protocol) for run in runs]
    return compare_results(results, samples=samples, seed=seed, confidence=confidence)


def compare_results(
    results: Sequence[EvaluationResult], *, samples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> Comparison:
    """The same for results in memory.

    Raises:
        UsageError: they were measured differently.
    """
    require_comparable(results)
    differences: list[dict[str, Difference]] = [{}]
    for result in results[1:]:
        differences.append(_differences(results[0], result, samples, seed, confidence))
    return Comparison(list(results), differences, confidence)


def _differences(
    first: EvaluationResult, other: EvaluationResult, samples: int, seed: int, confidence: float
) -> dict[str, Difference]:
    shared = [key for key in first.metrics if key in other.metrics]
    found = {key: Difference(other.metrics[key] - first.metrics[key]) for key in shared}
    paired = [key for key in shared if _averages(first, key) and _averages(other, key)]
    if paired:
        row = {image_id: i for i, image_id in enumerate(other.captions)}
        a = np.array([first.per_image[key] for key in paired], dtype=np.float64).T
        b = np.array([other.per_image[key] for key in paired], dtype=np.float64).T
        b = b[[row[image_id] for image_id in first.captions]]
        difference, low, high = paired_bootstrap(a, b, samples=samples, seed=seed, confidence=confidence)
        for key, *ends in zip(paired, difference.tolist(), low.tolist(), high.tolist(), strict=True):
            found[key] = Difference(*ends)
    return found


def _averages(result: EvaluationResult, key: str) -> bool:
    """Whether the run has a value of ``key`` for every image."""
    column = result.per_image.get(key)
    return column is not None and all(value is not None and value == value for value in column)


def _style(difference: Difference, column: Column) -> str:
    if not difference.clear or not column.better:
        return "dim"
    return "green" if difference.value * column.better > 0 else "red"


def _cell(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
