"""The plots of the page, as the plain data that plotly.js draws."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tellapart.evaluation.columns import Column, all_columns, describe, main_columns
from tellapart.evaluation.report.runs import Curve, RunView

COLOURS = ("#3f74c4", "#d07a1f", "#2f9678", "#b34f93", "#8a7d24", "#6d5bd0", "#c4514b", "#667384")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star", "hexagon", "cross")
SWATCHES = ("●", "■", "◆", "▲", "✕", "★", "⬢", "✚")
"""The markers as characters, so that the page's legend needs no picture."""

EVAL_PREFIX = "eval_"
MOST_POINTS = 400


@dataclass(frozen=True)
class Figure:
    """One small plot.

    Args:
        id: of its element on the page.
        title: its heading.
        about: what is plotted, for readers who cannot see it.
        spec: ``data`` and ``layout`` for plotly.js as JSON that is safe inside a script element.
    """

    id: str
    title: str
    about: str
    spec: str


def colour(row: int) -> str:
    """The colour of the run in this row of the table."""
    return COLOURS[row % len(COLOURS)]


def swatch(row: int) -> str:
    """Its marker."""
    return SWATCHES[row % len(SWATCHES)]


def evaluation_figures(runs: Sequence[RunView]) -> tuple[list[Figure], list[Figure]]:
    """``(main metrics, the others)`` over training steps, one figure a metric that any run logged."""
    keys = [key.removeprefix(EVAL_PREFIX) for key in _keys(runs) if key.startswith(EVAL_PREFIX)]
    main = main_columns(keys)
    others = [column for column in all_columns(keys) if column not in main]
    return (
        [_over_steps(runs, EVAL_PREFIX + column.key, column) for column in main],
        [_over_steps(runs, EVAL_PREFIX + column.key, column) for column in others],
    )


def training_figures(runs: Sequence[RunView]) -> list[Figure]:
    """What training itself logged (loss, reward, ...), one figure a key."""
    keys = [key for key in _keys(runs) if not key.startswith(EVAL_PREFIX)]
    return [_over_steps(runs, key, Column(key, key, digits=4)) for key in keys]


def trade_off(runs: Sequence[RunView]) -> Figure | None:
    """Likeness to people (CIDEr) against retrieval by the last listener: each run's path over steps, or point."""
    if not runs[0].result.protocol.listeners:
        return None
    across, up = describe(f"{list(runs[0].result.protocol.listeners)[-1]}_R@1"), describe("CIDEr")
    traces = []
    for row, run in enumerate(runs):
        points = _path(run, across, up)
        if points:
            steps, xs, ys = zip(*points, strict=True)
            labels = [f"step {step}" if step is not None else "evaluated" for step in steps]
            hover = f"{across.label} %{{x:.1f}}<br>{up.label} %{{y:.1f}}<br>%{{text}}"
            traces.append(_trace(row, run.name, list(xs), list(ys), hover) | {"text": labels})
    if not traces:
        return None
    about = (
        f"{up.label} against {across.label}: up reads like the references, right tells images apart. "
        "Lines are paths over training on its own evaluation images, single points the results above."
    )
    layout = {"xaxis": {"title": {"text": across.label}}, "yaxis": {"title": {"text": up.label}}}
    return Figure("trade-off", "Trade-off", about, safe_json({"data": traces, "layout": layout}))


def _path(run: RunView, across: Column, up: Column) -> list[tuple[int | None, float, float]]:
    """Steps with both metrics, as printed; where training logged no path, the point of the evaluation."""
    xs, ys = (dict(run.curves.get(EVAL_PREFIX + column.key, [])) for column in (across, up))
    path: list[tuple[int | None, float, float]] = [
        (step, xs[step] * across.scale, ys[step] * up.scale) for step in sorted(xs.keys() & ys.keys())
    ]
    metrics = run.result.metrics
    if len(path) < 2 and across.key in metrics and up.key in metrics:
        path = [(None, metrics[across.key] * across.scale, metrics[up.key] * up.scale)]
    return path


def _over_steps(runs: Sequence[RunView], key: str, column: Column) -> Figure:
    traces, ends = [], []
    for row, run in enumerate(runs):
        curve = thin(run.curves.get(key, []))
        if curve:
            values = [value * column.scale for _, value in curve]
            hover = f"step %{{x}}: %{{y:.{column.digits}f}}"
            traces.append(_trace(row, run.name, [step for step, _ in curve], values, hover))
            ends.append(f"{run.name} {column.text(curve[0][1])} to {column.text(curve[-1][1])}")
    better = {1: " Higher is better.", -1: " Lower is better.", 0: ""}[column.better]
    about = f"{column.label} over training steps: {'; '.join(ends)}.{better}"
    layout = {"xaxis": {"title": {"text": "step"}, "rangemode": "tozero"}}
    identity = "curve-" + "".join(c if c.isalnum() else "-" for c in key)
    return Figure(identity, column.label, about, safe_json({"data": traces, "layout": layout}))


def _trace(row: int, name: str, xs: list[Any], ys: list[float], hover: str) -> dict[str, Any]:
    """A line of one run; plotly reads names and labels as a kind of HTML, so they are escaped."""
    many = len(xs) > 60
    return {
        "type": "scatter",
        "mode": "lines" if many else "lines+markers",
        "name": html.escape(name),
        "x": xs,
        "y": ys,
        "line": {"color": colour(row), "width": 2},
        "marker": {"symbol": MARKERS[row % len(MARKERS)], "size": 11 if len(xs) == 1 else 6, "color": colour(row)},
        "hovertemplate": f"{hover}<extra>{html.escape(name)}</extra>",
    }


def thin(curve: Curve) -> Curve:
    """At most about ``MOST_POINTS`` of the points, evenly, the last one kept."""
    stride = max(1, -(-len(curve) // MOST_POINTS))
    return curve if stride == 1 else [*curve[:-1:stride], curve[-1]]


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _keys(runs: Sequence[RunView]) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run.curves))
