"""The frontier as PNG and SVG: panels of recall against naturalness, with matplotlib (extra ``plot``)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError
from tellapart.evaluation.columns import describe
from tellapart.evaluation.report.curves import colour, place_of_marker
from tellapart.files import beside
from tellapart.sweep.frontier.readings import band, first_recalls, naturalness
from tellapart.sweep.frontier.tables import TITLES, starts
from tellapart.sweep.records import START, Curve, Point, metric_keys, values

MARKERS = ("o", "s", "D", "^", "X", "*", "h", "P")
MOST = 3
"""Rows and columns of panels: more cannot be read on a page, and the interactive page has every pair."""

FORMATS = ("png", "svg")
MARGIN = 0.06
"""Of an axis, on both sides of its points."""

ABOUT = "large: mean over seeds; small: each seed; shaded: pointwise 95 % t-interval over seeds, cut at the axes; +: start model"


def require_matplotlib() -> Any:
    """matplotlib's ``Figure``, which draws without a screen.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "a frontier is drawn with matplotlib, which is not installed: pip install 'tellapart[plot]', or give "
            "--picture false for the tables and the page alone."
        ) from error
    return Figure


def draw(folder: Path, curves: Sequence[Curve], checkpoint: str, *, name: str = "frontier") -> list[Path]:
    """Write ``<name>.png`` and ``<name>.svg``; returns their paths.

    Args:
        folder: to write to.
        curves: of all methods.
        checkpoint: ``selected`` or ``last``.
        name: of the files.

    Raises:
        UsageError: matplotlib is not installed, or no pair of metrics was measured.
    """
    figure_class = require_matplotlib()
    up, across = panels_of(curves)
    if not up or not across:
        raise UsageError(
            "there is no curve to draw, because neither a retriever nor exact_recall was measured: name listener.path or "
            "evaluation.judge in the recipe."
        )
    # Figure without pyplot: no window system, no state that two pictures share
    figure = figure_class(figsize=(3.3 * len(across), 2.9 * len(up) + 0.9), layout="constrained")
    panels = figure.subplots(len(up), len(across), squeeze=False, sharex="col", sharey="row")
    for row, recall in enumerate(up):
        for place, natural in enumerate(across):
            _panel(panels[row][place], curves, checkpoint, natural, recall)
            panels[row][place].set(xlim=_span(curves, checkpoint, natural), ylim=_span(curves, checkpoint, recall))
            panels[row][place].set_ylabel(describe(recall).label if place == 0 else "")
            panels[row][place].set_xlabel(_axis(natural) if row == len(up) - 1 else "")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, max(1, len(labels))), frameon=False)
    figure.supxlabel(f"{TITLES[checkpoint]}. {ABOUT}", fontsize=8, color="0.4")
    return save(figure, folder / name)


def panels_of(curves: Sequence[Curve]) -> tuple[list[str], list[str]]:
    """The recalls, exact recall first, and the metrics of naturalness that are drawn.

    What was measured for one method only compares nothing, so that of several curves two must have a metric.
    """
    held = Counter(key for curve in curves for key in metric_keys([curve]))
    keys = [key for key in metric_keys(curves) if held[key] >= min(2, len(curves))]
    return first_recalls(keys)[::-1][:MOST], naturalness(keys)[:MOST]


def save(figure: Any, path: Path) -> list[Path]:
    """Write a figure next to ``path`` in every format, the same bytes each time; returns the paths.

    Args:
        figure: of matplotlib.
        path: without ending.
    """
    from matplotlib import rc_context

    paths = [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for target in paths:
        kind = target.suffix[1:]
        with beside(target) as temporary, rc_context({"svg.hashsalt": "tellapart"}):
            figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return paths


def _panel(panel: Any, curves: Sequence[Curve], checkpoint: str, x: str, y: str) -> None:
    across, up = describe(x), describe(y)
    for number, curve in enumerate(curves):
        shade, marker = colour(number), MARKERS[place_of_marker(number)]
        drawn = band(curve, checkpoint, x, y)
        if drawn:
            places, low, high = zip(*drawn, strict=True)
            scaled = ([value * up.scale for value in side] for side in (low, high))
            panel.fill_between([p * across.scale for p in places], *scaled, color=shade, alpha=0.15, linewidth=0)
        for seed in curve.seeds(checkpoint):
            xs, ys = curve.path(checkpoint, seed, x, y)
            panel.plot(*_printed(xs, ys, x, y), marker, color=shade, markersize=2.5, alpha=0.45, linestyle="none")
        means = [_mean(point, checkpoint, x, y) for point in curve.points]
        xs, ys = [m[0] for m in means if m], [m[1] for m in means if m]
        label = curve.label.replace("$", r"\$")  # else read as mathematics
        panel.plot(*_printed(xs, ys, x, y), marker=marker, color=shade, markersize=5.5, linewidth=1.4, label=label)
    for _, point in starts(curves):
        mean = _mean(point, START, x, y)
        if mean:
            panel.plot(*_printed([mean[0]], [mean[1]], x, y), "+", color="0.2", markersize=9, markeredgewidth=1.6)
    panel.grid(color="0.92")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _span(curves: Sequence[Curve], checkpoint: str, key: str) -> tuple[float, float] | None:
    """An axis over all points with a margin: intervals of few seeds are wide, and reach where no metric can be."""
    points = [(point, checkpoint) for curve in curves for point in curve.points]
    points += [(point, START) for _, point in starts(curves)]
    found = [value * describe(key).scale for point, which in points for value in values(point, which, key)]
    if not found or min(found) == max(found):
        return None
    low, high = min(found), max(found)
    margin = MARGIN * (high - low)
    return low - margin, high + margin


def _mean(point: Point, checkpoint: str, x: str, y: str) -> tuple[float, float] | None:
    xs, ys = values(point, checkpoint, x), values(point, checkpoint, y)
    return (math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)) if xs and ys else None


def _printed(xs: Sequence[float], ys: Sequence[float], x: str, y: str) -> tuple[list[float], list[float]]:
    """As tables print them."""
    return [value * describe(x).scale for value in xs], [value * describe(y).scale for value in ys]


def _axis(key: str) -> str:
    column = describe(key)
    return column.label + {1: " (higher is better)", -1: " (lower is better)", 0: ""}[column.better]
