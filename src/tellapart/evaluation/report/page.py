"""The page itself: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart.data.dataset import CaptionDataset
from tellapart.evaluation.columns import EVAL_PREFIX, Column, all_columns, main_columns
from tellapart.evaluation.compare import Comparison, Difference, compare_results
from tellapart.evaluation.one_file import download, write_page
from tellapart.evaluation.report.curves import (
    colour,
    evaluation_figures,
    figure_id,
    swatch,
    trade_off,
    training_figures,
)
from tellapart.evaluation.report.gallery import Gallery, gallery
from tellapart.evaluation.report.runs import RunView
from tellapart.evaluation.report.summary import best_of, deciding, pairs, verdict

ARROWS = {"good": "▲ ", "bad": "▼ ", "plain": ""}
"""Before a difference: better or worse beyond chance, or neither."""


@dataclass(frozen=True)
class Cell:
    """A number of the table.

    Args:
        text: as printed.
        value: by which rows are sorted; empty where there is none.
        best: whether it is the column's best.
        difference: to the first row, as printed; empty in that row.
        sureness: interval and p-value of the difference.
        tone: good, bad or plain.
    """

    text: str
    value: str
    best: bool
    difference: str
    sureness: str
    tone: str

    @property
    def arrow(self) -> str:
        """A sign for readers who do not see the colour."""
        return ARROWS[self.tone]


@dataclass(frozen=True)
class Row:
    """A model's line of the table, with how many warnings last to the end of its log."""

    name: str
    colour: str
    swatch: str
    warnings: int
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """Models by metrics."""

    caption: str
    columns: list[Column]
    rows: list[Row]


def write_report(
    path: Path,
    runs: Sequence[RunView],
    *,
    dataset: CaptionDataset | None = None,
    title: str = "Image captioners compared",
    images: int = 80,
    seed: int = 0,
) -> Path:
    """Write the page in one rename; returns its path.

    Args:
        path: the HTML file.
        runs: at least one, measured under one protocol; the first is what the others are compared to.
        dataset: pictures and references; without it the page shows captions and scores alone. A picture that cannot be
            read (features replace it, or it is gone) is left out, and the page says how many.
        title: heading of the page.
        images: how many images the gallery holds; 0 leaves it out.
        seed: of those drawn at random, and of the bootstrap.

    Raises:
        UsageError: there are no runs, they were measured differently, or the data set lacks their images.
    """
    comparison = compare_results([run.result for run in runs], seed=seed)
    shown = gallery(runs, dataset, images=images, seed=seed) if images else None
    return write_page(
        path,
        "tellapart.evaluation.report",
        scripts=("page.js", "gallery.js"),
        **_content(runs, comparison),
        title=title,
        pairs=pairs(runs, dataset) if images else [],
        gallery=shown,
        unread=_unread(shown, dataset),
    )


def _content(runs: Sequence[RunView], comparison: Comparison) -> dict[str, Any]:
    """Everything but the images, by its name in the template."""
    main, others = evaluation_figures(runs)
    training, further = training_figures(runs)
    rows = list(enumerate(runs))
    best, sheet = best_of(runs), comparison.sheet(every_metric=True)
    return {
        "verdict": verdict(runs),
        "first": runs[0].name,
        "best": "" if best is None else runs[best].name,
        "csv": download("text/csv", sheet.to_csv()),
        "latex": download("text/plain", sheet.to_latex()),
        "protocol": comparison.protocol,
        "notes": [(run.name, run.result.protocol.note) for run in runs if run.result.protocol.note],
        "differences": comparison.caption().split("\n")[0] if len(runs) > 1 else "",
        "main_table": _table(runs, comparison, deciding(runs) or main_columns(comparison.keys), "Metrics that decide"),
        "full_table": _table(runs, comparison, all_columns(comparison.keys), "All metrics"),
        "legend": [(run.name, colour(row), swatch(row)) for row, run in rows],
        "alarms": [(row, run.name, run.alarms) for row, run in rows if run.alarms],
        "selected": [run.selected_step for run in runs],
        "marked": any(run.selected_step is not None for run in runs),
        "watched": [run.name for run in runs if len(run.curves) > 0],
        "figure_id": figure_id,
        "records": [(row, run.name, run.record.lines()) for row, run in rows if run.record is not None],
        "trade_off": trade_off(runs),
        "main_figures": main,
        "other_figures": others,
        "training_figures": training,
        "further_figures": further,
        "numbers": _numbers(runs),
        "colours": [colour(row) for row in range(len(runs))],
        "swatches": [swatch(row) for row in range(len(runs))],
    }


def _unread(shown: Gallery | None, dataset: CaptionDataset | None) -> str:
    """The note about pictures that could not be read."""
    if shown is None or dataset is None or not shown.unread:
        return ""
    if len(shown.unread) == len(shown.cards):
        return f"There are no pictures: none of {dataset.name} can be read here."
    image_id, why = shown.unread[0]
    return f"{len(shown.unread)} of {len(shown.cards)} pictures cannot be read, the first being {image_id}: {why}"


def _table(runs: Sequence[RunView], comparison: Comparison, columns: list[Column], caption: str) -> Table:
    best = {column.key: _best(column, comparison) for column in columns}
    rows = []
    for number, (run, differences) in enumerate(zip(runs, comparison.differences, strict=True)):
        cells = []
        for column in columns:
            value, difference = run.result.metrics.get(column.key), differences.get(column.key)
            is_best = value is not None and best[column.key] is not None and column.text(value) == best[column.key]
            known = "" if value is None or not math.isfinite(value) else f"{value:.9g}"
            text = column.signed(difference.value) if difference else ""
            sure = difference.text(column).removeprefix(text).strip() if difference else ""
            cells.append(Cell(column.text(value), known, is_best, text, sure, _tone(difference, column)))
        lasting = sum(alarm.lasting for alarm in run.alarms)
        rows.append(Row(run.name, colour(number), swatch(number), lasting, cells))
    return Table(caption, columns, rows)


def _best(column: Column, comparison: Comparison) -> str | None:
    """The best value as printed, where a direction is better and the rows differ."""
    found = [result.metrics.get(column.key, math.nan) for result in comparison.results]
    values = [value for value in found if math.isfinite(value)]
    if not column.better or len({column.text(value) for value in values}) < 2:
        return None
    return column.text(max(values, key=lambda value: value * column.better))


def _tone(difference: Difference | None, column: Column) -> str:
    if difference is None or not difference.clear or not column.better:
        return "plain"
    return "good" if difference.value * column.better > 0 else "bad"


def _numbers(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """The evaluations during training as tables, for those who cannot read the curves."""
    tables = []
    for run in runs:
        keys = [key.removeprefix(EVAL_PREFIX) for key in run.curves if key.startswith(EVAL_PREFIX)]
        columns = main_columns(keys)
        points = {column.key: dict(run.curves[EVAL_PREFIX + column.key]) for column in columns}
        steps = sorted({step for curve in points.values() for step in curve})
        lines = [(step, [column.text(points[column.key].get(step)) for column in columns]) for step in steps]
        if lines:
            tables.append({"name": run.name, "columns": columns, "lines": lines})
    return tables
