"""Everything that a frontier writes: tables, numbers, pictures and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tellapart.data.dataset import CaptionDataset
from tellapart.evaluation.columns import describe
from tellapart.files import write_text
from tellapart.sweep.frontier.examples import page_data
from tellapart.sweep.frontier.page import write_page
from tellapart.sweep.frontier.picture import draw
from tellapart.sweep.frontier.readings import CONFIDENCE
from tellapart.sweep.frontier.tables import HOW_READ, TITLES, Table, fixed_readings, points_table, present, to_csv
from tellapart.sweep.records import FRONTIER_FILE, Curve, metric_keys, require_comparable, write_curves

PAGE_FILE, TABLES_FILE, CSV_FILE = "frontier.html", "frontier.md", "frontier.csv"
NAMES = {"selected": "frontier", "last": "frontier-last"}
"""Checkpoint -> the picture's name."""


def write_frontier(
    folder: Path,
    curves: Sequence[Curve],
    *,
    asked: Mapping[str, Sequence[float]] | None = None,
    dataset: CaptionDataset | None = None,
    images: int = 8,
    seed: int = 0,
    title: str = "The frontier of recall and naturalness",
    picture: bool = True,
) -> Path:
    """Write ``frontier.md``, ``.csv``, ``.json``, ``.html`` and, per checkpoint, ``.png`` and ``.svg``; returns the page's path.

    Args:
        folder: to write to.
        curves: of all methods, measured in the same way.
        asked: metric -> values *as tables print them* (CIDEr 120 is 1.2) where the curves are read; None chooses.
        dataset: the images that were captioned, for the page.
        images: examples on the page.
        seed: of the choice of examples.
        title: heading.
        picture: whether PNG and SVG are drawn, which takes matplotlib.

    Raises:
        UsageError: nothing was measured, the curves were measured differently, a metric of ``asked`` was not measured, or
            matplotlib is missing.
    """
    protocol = require_comparable(curves)
    stored = {key: [value / describe(key).scale for value in found] for key, found in (asked or {}).items()}
    fixed = fixed_readings(curves, stored)
    failures = failed_lines(curves)
    tables = [found.table(curves) for found in fixed]
    points = [points_table(curves, name) for name in present(curves)]
    further = {
        "protocol": protocol,
        "confidence": CONFIDENCE,
        "metrics": metric_keys(curves),
        "readings": [entry for found in fixed for entry in found.to_json(curves)],
        "failures": failures,
    }
    write_curves(folder / FRONTIER_FILE, curves, further)
    pictures = present(curves) if picture else []
    write_text(folder / TABLES_FILE, _markdown(title, protocol, failures, pictures, tables, points))
    write_text(folder / CSV_FILE, to_csv(curves))
    page = write_page(
        folder / PAGE_FILE,
        page_data(curves, dataset, images=images, seed=seed),
        title=title,
        csv=to_csv(curves),
        protocol=protocol,
        tables=tables,
        point_tables=points,
        failures=failures,
    )
    for name in pictures:
        draw(folder, curves, name, name=NAMES[name])
    return page


def failed_lines(curves: Sequence[Curve]) -> list[str]:
    """One line for each training that failed."""
    return [
        f"{curve.label}: {point.label()}, seed {seed}: {why}"
        for curve in curves
        for point in curve.points
        for seed, why in point.failed.items()
    ]


def _markdown(
    title: str,
    protocol: str,
    failures: Sequence[str],
    pictures: Sequence[str],
    tables: Sequence[Table],
    points: Sequence[Table],
) -> str:
    parts = [f"# {title}", "", f"How measured: {protocol}", "", HOW_READ, ""]
    for name in pictures:
        parts += [f"![Recall against naturalness, {TITLES[name]}]({NAMES[name]}.png)", ""]
    if failures:
        parts += ["## Failed", "", *(f"- {line}" for line in failures), ""]
    parts += ["## Read off the curves", "", *(table.to_markdown() for table in tables)]
    parts += ["## Every point", "", *(table.to_markdown() for table in points)]
    return "\n".join(parts).rstrip() + "\n"
