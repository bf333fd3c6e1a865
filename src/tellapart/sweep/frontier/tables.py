"""The tables of a frontier, as headings and cells that Markdown and HTML print alike, and as numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tellapart.errors import UsageError
from tellapart.evaluation.columns import describe, main_columns, markdown_cell
from tellapart.metrics.curves import t_interval
from tellapart.sweep.claims import markdown_table
from tellapart.sweep.frontier.readings import (
    CONFIDENCE,
    EXACT,
    OWN,
    Reading,
    first_recalls,
    levels,
    naturalness,
    read,
    recalls,
)
from tellapart.sweep.records import CHECKPOINTS, START, Curve, Point, metric_keys, start_models, values

TITLES = {"selected": "selected checkpoint", "last": "last step"}

HOW_READ = f"""Each value of a knob is one point of a curve. Values between points are interpolated linearly between the two
neighbours in the fixed metric, on each seed's own curve. Nothing is extrapolated: a value that no two points enclose is
"unreached". The number after ± is half the width of the {100 * CONFIDENCE:g} % Student-t interval over seeds (none for one
seed). It leaves out the choice of images. "(2 of 3 seeds)": the other seeds' curves do not reach the value. ↺: along the
knob the curve passes the fixed value more than once, and the neighbours in the fixed metric were taken."""


@dataclass(frozen=True)
class Table:
    """Cells as printed; the first column names the row."""

    title: str
    headings: list[str]
    rows: list[list[str]]

    def to_markdown(self) -> str:
        """The table with its heading."""
        heads, *rows = ([markdown_cell(cell) for cell in row] for row in (self.headings, *self.rows))
        return f"### {self.title}\n\n{markdown_table(heads, rows)}\n"


@dataclass(frozen=True)
class Fixed:
    """Readings of all curves where one metric is held.

    Args:
        checkpoint: ``selected`` or ``last``.
        key: the metric that is held.
        at: its values, on the stored scale.
        metrics: what is read.
        readings: value of ``at`` -> curve -> metric.
    """

    checkpoint: str
    key: str
    at: tuple[float, ...]
    metrics: tuple[str, ...]
    readings: list[list[list[Reading]]]

    def table(self, curves: Sequence[Curve]) -> Table:
        """One row a value and curve."""
        column, shown = describe(self.key), [describe(key) for key in self.metrics]
        rows = [
            [curve.label, column.text(at), *(reading.text(c) for reading, c in zip(row, shown, strict=True))]
            for at, level in zip(self.at, self.readings, strict=True)
            for curve, row in zip(curves, level, strict=True)
        ]
        title = f"At fixed {column.label} ({TITLES[self.checkpoint]})"
        return Table(title, ["method", f"at {column.label}", *(c.label for c in shown)], rows)

    def to_json(self, curves: Sequence[Curve]) -> list[dict[str, Any]]:
        """One entry a value, curve and metric, on the stored scale."""
        return [
            {
                **{"checkpoint": self.checkpoint, "fixed": self.key, "at": at},
                **{"curve": curve.label, "metric": key, **asdict(reading)},
            }
            for at, level in zip(self.at, self.readings, strict=True)
            for curve, row in zip(curves, level, strict=True)
            for key, reading in zip(self.metrics, row, strict=True)
        ]


def fixed_readings(curves: Sequence[Curve], asked: Mapping[str, Sequence[float]]) -> list[Fixed]:
    """Recall at fixed naturalness and naturalness at fixed recall, of both checkpoints.

    Args:
        curves: of all methods.
        asked: metric -> values on the stored scale to read at. Without any: CIDEr (else the first metric of naturalness), the
            last retriever's R@1 and exact_recall@1, at values that the curves share.

    Raises:
        UsageError: a metric of ``asked`` was not measured.
    """
    keys = metric_keys(curves)
    natural, heard, found = naturalness(keys), recalls(keys), []
    for key in asked:
        if key not in keys:
            raise UsageError(f"--at {key} was not measured: choose one of {', '.join((*natural, *heard))}.")
    for checkpoint in present(curves):
        for key, at in (asked or _usual(curves, checkpoint, keys)).items():
            metrics = tuple(natural if key in heard else heard)
            rows = [
                [[read(curve, checkpoint, key, value, metric) for metric in metrics] for curve in curves]
                for value in at
            ]
            if at and metrics:
                found.append(Fixed(checkpoint, key, tuple(at), metrics, rows))
    return found


def present(curves: Sequence[Curve]) -> list[str]:
    """The checkpoints that any curve has."""
    return [name for name in CHECKPOINTS if any(curve.seeds(name) for curve in curves)]


def _usual(curves: Sequence[Curve], checkpoint: str, keys: Sequence[str]) -> dict[str, list[float]]:
    heard = [key for key in first_recalls(keys) if not key.startswith((EXACT, OWN))][-1:]
    chosen = naturalness(keys)[:1] + heard + [key for key in keys if key == f"{EXACT}1"]
    return {key: levels(curves, checkpoint, key) for key in chosen}


def points_table(curves: Sequence[Curve], checkpoint: str) -> Table:
    """Every point with its main metrics: mean over seeds and half the width of the t-interval."""
    columns = main_columns(metric_keys(curves))
    rows = [
        [label, _count(point, START), *(spread(point, START, column.key) for column in columns)]
        for label, point in starts(curves)
    ]
    for curve in curves:
        for point in curve.points:
            cells = [spread(point, checkpoint, column.key) for column in columns]
            rows.append([f"{curve.label}: {point.label()}", _count(point, checkpoint), *cells])
    title = f"Every point ({TITLES[checkpoint]})"
    return Table(title, ["point", "seeds", *(column.label for column in columns)], rows)


def verdict(curves: Sequence[Curve], curve: int, point: int, x: str, y: str) -> str:
    """The best compromise in one sentence, with its means at the first checkpoint and those of its start model.

    Args:
        curves: of all methods.
        curve: place of the best point's curve.
        point: its place on the curve.
        x: metric of caption quality.
        y: recall metric.
    """
    best = curves[curve].points[point]
    start = Point({}, best.start())
    figures = []
    for key in (y, x):
        column, now, before = describe(key), values(best, present(curves)[0], key), values(start, START, key)
        told = f"{column.label} {column.text(t_interval(now)[0])}"
        figures.append(f"{told} (start model {column.text(t_interval(before)[0])})" if before else told)
    seeds = len(best.trainings)
    return (
        f"Best compromise between {describe(y).label} and {describe(x).label}: {curves[curve].label}, {best.label()}. "
        f"{', '.join(figures)}; {seeds} seed{'s' if seeds > 1 else ''}."
    )


def to_csv(curves: Sequence[Curve]) -> str:
    """One row per evaluation: curve, options of the grid, seed, checkpoint, step, then every metric by its name in
    ``metrics.json``, on the stored scale, unrounded; start models once."""
    keys = metric_keys(curves)
    options = list(dict.fromkeys(key for curve in curves for point in curve.points for key in point.settings))
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["curve", *options, "seed", "checkpoint", "step", *keys])
    each = starts(curves) + [(curve.label, point) for curve in curves for point in curve.points]
    for label, point in each:
        settings = [point.settings.get(key) for key in options]
        for training in point.trainings:
            for checkpoint, measured in training.checkpoints.items():
                numbers = [measured.metrics.get(key) for key in keys]
                writer.writerow([label, *settings, training.seed, checkpoint, measured.step, *numbers])
    return written.getvalue()


def starts(curves: Sequence[Curve]) -> list[tuple[str, Point]]:
    """The start models as points, each once, and what they are called."""
    found = start_models(curves)
    if len(found) == 1:
        return [("start model", Point({}, trainings)) for _, trainings in found]
    return [(f"start model of {', '.join(_labels(points))}", Point({}, trainings)) for points, trainings in found]


def _labels(points: Sequence[tuple[Curve, Point]]) -> list[str]:
    """The curves that these points are of; of a curve with others, too, each point."""
    own = {id(point) for _, point in points}
    whole = {id(curve): all(id(point) in own or not point.begins() for point in curve.points) for curve, _ in points}
    named = (curve.label if whole[id(curve)] else f"{curve.label}: {point.label()}" for curve, point in points)
    return list(dict.fromkeys(named))


def spread(point: Point, checkpoint: str, key: str) -> str:
    """``12.3 ± 1.4``."""
    column, found = describe(key), values(point, checkpoint, key)
    if not found:
        return "-"
    mean, half = t_interval(found, CONFIDENCE)
    return column.text(mean) + ("" if half is None else f" ± {column.text(half)}")


def _count(point: Point, checkpoint: str) -> str:
    held = sum(checkpoint in training.checkpoints for training in point.trainings)
    return f"{held}" + (f" ({len(point.failed)} failed)" if point.failed else "")
