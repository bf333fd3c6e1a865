"""Runs that differ only in their seed as one row: mean and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tellapart.evaluation.columns import Column, all_columns, main_columns
from tellapart.evaluation.compare import chosen_on, print_below
from tellapart.evaluation.protocol import joint_line
from tellapart.evaluation.results import EvaluationResult, require_comparable
from tellapart.evaluation.sheet import Cell, Row, Sheet, with_spread

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Pool:
    """Results of one training with several seeds, under one name."""

    name: str
    results: Sequence[EvaluationResult]

    def cell(self, key: str) -> Cell:
        """Mean over the seeds that have the metric, and their sample standard deviation (n - 1) where there are two."""
        values = [result.metrics[key] for result in self.results if key in result.metrics]
        if not values:
            return Cell(None)
        if not all(map(math.isfinite, values)):  # of a foreign file; statistics raises
            return Cell(math.nan, math.nan if len(values) > 1 else None)
        return Cell(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Pooled:
    """Pools measured under one protocol.

    Example:
        >>> Pooled.of([Pool("dico", [seed_0, seed_1, seed_2])]).sheet().to_latex()
    """

    pools: Sequence[Pool]

    @staticmethod
    def of(pools: Sequence[Pool]) -> Pooled:
        """The same after a check.

        Raises:
            UsageError: two results were measured differently.
        """
        require_comparable([result for pool in pools for result in pool.results])
        return Pooled(pools)

    @property
    def _results(self) -> list[EvaluationResult]:
        return [result for pool in self.pools for result in pool.results]

    def caption(self, columns: Sequence[Column] = ()) -> str:
        """The meaning of the numbers, and how they were measured.

        Args:
            columns: metrics. Where some runs of a pool lack one, the text says how many have it.
        """
        seeds = ", ".join(f"{pool.name} {len(pool.results)}" for pool in self.pools)
        meaning = f"Mean ± sample standard deviation over seeds (number of runs: {seeds})."
        measured = joint_line([result.protocol for result in self._results])
        return "\n".join(filter(None, [meaning, self._lacking(columns), chosen_on(self._results), measured]))

    def _lacking(self, columns: Sequence[Column]) -> str:
        """The metrics that are means over some runs of a pool only."""
        counted = [
            (column, pool, sum(column.key in one.metrics for one in pool.results))
            for column in columns
            for pool in self.pools
        ]
        told = [
            f"{column.label} of {pool.name} {count} of {len(pool.results)}"
            for column, pool, count in counted
            if 0 < count < len(pool.results)
        ]
        return f"NOTE: not all of these runs have every metric (runs that have it: {', '.join(told)})." if told else ""

    def sheet(self, *, every_metric: bool = False) -> Sheet:
        """The table."""
        keys = list(dict.fromkeys(key for result in self._results for key in result.metrics))
        columns = all_columns(keys) if every_metric else main_columns(keys)
        rows = [Row(pool.name, [pool.cell(column.key) for column in columns], len(pool.results)) for pool in self.pools]
        caption = self.caption(columns)
        return Sheet(columns, rows, caption, caption)

    def print(self, console: Console, *, every_metric: bool = False) -> None:
        """One row per metric, one column per pool."""
        from rich.table import Table
        from rich.text import Text

        sheet, table = self.sheet(every_metric=every_metric), Table()
        table.add_column("metric")
        for row in sheet.rows:
            table.add_column(Text(row.name), justify="right")
        for place, column in enumerate(sheet.columns):
            table.add_row(Text(column.heading), *(with_spread(row.cells[place], column) for row in sheet.rows))
        console.print(table)
        print_below(console, sheet.columns, sheet.caption)

    def to_json(self) -> dict[str, Any]:
        """Mean, spread and the values of each seed, on their stored scale."""
        sheet = self.sheet(every_metric=True)
        return {
            "protocol": sheet.caption.splitlines()[-1],
            "pools": [
                {
                    "name": pool.name,
                    "runs": [result.name for result in pool.results],
                    "mean": {c.key: cell.value for c, cell in zip(sheet.columns, row.cells, strict=True)},
                    "std": {c.key: cell.spread for c, cell in zip(sheet.columns, row.cells, strict=True)},
                    "values": {c.key: [r.metrics.get(c.key) for r in pool.results] for c in sheet.columns},
                }
                for pool, row in zip(self.pools, sheet.rows, strict=True)
            ],
        }
