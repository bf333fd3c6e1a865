"""What a study compares, shows and expects: the parts that differ between the pages of results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tellapart.evaluation.bootstrap import paired_bootstrap
from tellapart.evaluation.results import EvaluationResult, result_folders

if TYPE_CHECKING:
    from tellapart.experiments.study import Study
    from tellapart.experiments.world_run import Setting

Columns = Mapping[str, tuple[str, float]]
"""Metric -> (heading, factor it is printed with)."""


@dataclass(frozen=True)
class Claim:
    """An expectation, whether it holds, and the numbers that decided."""

    text: str
    holds: bool
    evidence: str


@dataclass(frozen=True)
class Plan:
    """One page of results.

    Args:
        page: the file it is written to.
        title: its heading.
        introduction: what it shows, above the protocol.
        rows: the methods, each with the grid it is tried at; keys of ``world_run.ROWS``.
        tables: heading -> columns.
        claims: decides what was expected.
        further: name of a further row -> one of its settings, given the finished grid.
        starts: captioners as teacher forcing leaves them, keys of ``world_rows.STARTS``.
        further_measures: of ``world_run.FURTHER``, what is measured on test beside the usual.
        sets: columns of several captions an image, if they are measured.
        sections: further parts of the page, before what was expected.
        on_val: rows that are tried at the grid and shown there only, to find out what makes the difference.
        probed: stages of listeners, without ``world/``, of which the page says what they know.
    """

    page: str
    title: str
    introduction: str
    rows: tuple[str, ...]
    tables: Mapping[str, Columns]
    claims: Callable[[Study], list[Claim]]
    further: Callable[[Study], dict[str, Setting]] = lambda study: {}
    on_val: tuple[str, ...] = ()
    probed: tuple[str, ...] = ("listener", "judge")
    starts: tuple[str, ...] = ("xe",)
    further_measures: tuple[str, ...] = ()
    sets: Columns = field(default_factory=dict)
    sections: Callable[[Study], list[str]] = lambda study: []


@dataclass(frozen=True)
class Seeds:
    """One metric of one row over seeds."""

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


class Reader:
    """Looks up test metrics of a study's rows, under greedy decoding unless another is named."""

    def __init__(self, study: Study) -> None:
        self.study, self.rows = study, dict(study.measured())

    def metric(
        self, row: str, key: str, *, point: str = "selected", factor: float = 1.0, decoding: str = "greedy"
    ) -> Seeds:
        """A metric over seeds."""
        tested = [self.study.tested(setting) for setting in self.rows[row]]
        return Seeds([factor * test[point][decoding][key] for test in tested])

    def per_image(self, setting: Setting, key: str, point: str) -> np.ndarray:
        """``[images]`` values of one seed under greedy decoding."""
        folders = result_folders(self.study.root / setting.key() / point)
        greedy = next(folder for folder in folders if "greedy" in folder.name)
        return np.asarray(EvaluationResult.load(greedy).per_image[key], dtype=np.float64)

    def interval(self, row: str, key: str, *, over: str = "xe", point: str = "selected") -> tuple[float, float]:
        """95 % paired-bootstrap interval over images of the row's gain over another, seeds averaged first."""
        ours = np.mean([self.per_image(s, key, point) for s in self.rows[row]], axis=0)
        start = np.mean([self.per_image(s, key, "selected") for s in self.rows[over]], axis=0)
        _, low, high = paired_bootstrap(start, ours)
        return float(low), float(high)


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Headings and rows of cells as Markdown."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
