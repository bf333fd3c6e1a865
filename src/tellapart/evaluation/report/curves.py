"""The plots of the page, as the plain data that plotly.js draws."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tellapart.evaluation.alarms import Alarm
from tellapart.evaluation.columns import (
    EVAL_PREFIX,
    FIRST,
    PART_PREFIXES,
    Column,
    all_columns,
    describe,
    describe_log,
    main_columns,
)
from tellapart.evaluation.report.runs import Curve, RunView
from tellapart.verdicts.rules import LOG_PREFIX

COLOURS = ("#3f74c4", "#d07a1f", "#2f9678", "#b34f93", "#8a7d24", "#6d5bd0", "#c4514b", "#667384")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star", "hexagon", "cross")
SWATCHES = ("●", "■", "◆", "▲", "✕", "★", "⬢", "✚")
"""The markers as characters, so that the page's legend needs no picture."""

ALARM = "#c4302b"
MOST_POINTS = 400


@dataclass(frozen=True)
class Figure:
    """One small plot.

    Args:
        id: of its element on the page.
        title: its heading.
        about: what is plotted, for readers who cannot see it.
        spec: ``data`` and ``layout`` for plotly.js as JSON that is safe inside a script element.
        explained: what the metric is.
        alarms: what is marked in it.
        tall: whether it has a legend of its own.
    """

    id: str
    title: str
    about: str
    spec: str
    explained: str = ""
    alarms: Sequence[str] = ()
    tall: bool = False


def colour(row: int) -> str:
    """The colour of the run in this row of the table."""
    return COLOURS[row % len(COLOURS)]


def place_of_marker(row: int) -> int:
    """Its marker's place in ``MARKERS``: sixty-four rows differ in colour or marker."""
    return (row + row // len(COLOURS)) % len(MARKERS)


def swatch(row: int) -> str:
    """Its marker as a character."""
    return SWATCHES[place_of_marker(row)]


def evaluation_figures(runs: Sequence[RunView]) -> tuple[list[Figure], list[Figure]]:
    """``(main metrics and those with an alarm, the others)`` over training steps, one figure a metric that any run logged."""
    keys = [key.removeprefix(EVAL_PREFIX) for key in _keys(runs) if key.startswith(EVAL_PREFIX)]
    broken = {alarm.key for run in runs for alarm in run.alarms}
    first = {column.key for column in main_columns(keys)}
    figures = {column.key: _over_steps(runs, EVAL_PREFIX + column.key) for column in all_columns(keys)}
    open_ones = [key for key in figures if key in first or EVAL_PREFIX + key in broken]
    return [figures[key] for key in open_ones], [figures[key] for key in figures if key not in open_ones]


def training_figures(runs: Sequence[RunView]) -> tuple[list[Figure], list[Figure]]:
    """``(loss, reward and its parts, KL, length; the rest)`` of what training itself logged."""
    broken = {alarm.key for run in runs for alarm in run.alarms}
    keys = [
        key for key in _keys(runs) if not key.startswith((EVAL_PREFIX, LOG_PREFIX, *PART_PREFIXES)) or key in broken
    ]
    keys = [key for key in keys if not key.startswith(EVAL_PREFIX)]
    first = [key for key in FIRST if key in keys] + [key for key in keys if key in broken and key not in FIRST]
    parts = [figure for row, run in enumerate(runs) if (figure := _parts(run, row, len(runs))) is not None]
    shown = [_over_steps(runs, key) for key in first]
    reward = 1 + first.index("reward") if "reward" in first else len(shown)
    rest = [_over_steps(runs, key) for key in keys if key not in first]
    return [*shown[:reward], *parts, *shown[reward:]], rest


def _parts(run: RunView, row: int, of: int) -> Figure | None:
    """The parts of a run's reward as applied, one line each, where there is more than one."""
    keys = [key for key in run.curves if key.startswith(PART_PREFIXES)]
    if len(keys) < 2:
        return None
    traces, ends = [], []
    for number, key in enumerate(keys):
        curve, name = thin(run.curves[key]), _part_name(key)
        trace = _trace(number, name, [step for step, _ in curve], [value for _, value in curve], "step %{x}: %{y:.4f}")
        traces.append(trace | {"showlegend": True})
        ends.append(f"{name} {curve[0][1]:.4f} to {curve[-1][1]:.4f}")
    title = "Reward's parts, as applied" + (f": {run.name}" if of > 1 else "")
    about = f"Weighted parts of the reward, which sum to it, over training steps: {'; '.join(ends)}."
    legend = {"orientation": "h", "y": -0.25, "yanchor": "top", "x": 0}
    layout = {"xaxis": {"title": {"text": "step"}}, "showlegend": True, "legend": legend}
    return Figure(f"parts-{row}", title, about, safe_json({"data": traces, "layout": layout}), tall=True)


def _part_name(key: str) -> str:
    of_people = " (human captions)" if key.startswith("reference/") else ""
    return key.rpartition("rewards/")[2] + of_people


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
    here = metrics.get(across.key, math.nan), metrics.get(up.key, math.nan)
    if len(path) < 2 and all(map(math.isfinite, here)):
        path = [(None, here[0] * across.scale, here[1] * up.scale)]
    return path


def _over_steps(runs: Sequence[RunView], key: str) -> Figure:
    """A key of the log, a line per run; where a run broke a rule, its limit and the points past it stand out."""
    column = describe_log(key)
    traces, ends, shapes, alarms = [], [], [], []
    for row, run in enumerate(runs):
        curve = thin(run.curves.get(key, []))
        if not curve:
            continue
        values = [value * column.scale for _, value in curve]
        hover = f"step %{{x}}: %{{y:.{column.digits}f}}"
        traces.append(_trace(row, run.name, [step for step, _ in curve], values, hover))
        ends.append(f"{run.name} {column.text(curve[0][1])} to {column.text(curve[-1][1])}")
        if key.startswith(EVAL_PREFIX) and run.selected_step is not None:
            shapes.append(_line("x", run.selected_step, colour(row), "dot"))
        for alarm in run.alarms:
            if alarm.key == key:
                traces.append(_past(run, alarm, column))
                shapes.append(_line("y", alarm.limit * column.scale, ALARM, "dash"))
                alarms.append(f"{run.name}: {alarm.rule}, from step {alarm.step}")
    better = {1: " Higher is better.", -1: " Lower is better.", 0: ""}[column.better]
    about = f"{column.label} over training steps: {'; '.join(ends)}.{better}"
    about += f" Alarms: {'; '.join(alarms)}." if alarms else ""
    layout = {"xaxis": {"title": {"text": "step"}, "rangemode": "tozero"}, "shapes": shapes}
    data = safe_json({"data": traces, "layout": layout})
    return Figure(figure_id(key), column.label, about, data, explained=column.about, alarms=alarms)


def figure_id(key: str) -> str:
    """The id of the figure of a key."""
    return "curve-" + "".join(c if c.isalnum() else "-" for c in key)


def _past(run: RunView, alarm: Alarm, column: Column) -> dict[str, Any]:
    """The points of an alarm, ringed."""
    kept = thin(list(alarm.points))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": html.escape(f"alarm: {run.name}"),
        "x": [step for step, _ in kept],
        "y": [value * column.scale for _, value in kept],
        "marker": {"symbol": "circle-open", "size": 13, "color": ALARM, "line": {"width": 2}},
        "hoverinfo": "skip",
    }


def _line(axis: str, at: float, shade: str, dash: str) -> dict[str, Any]:
    """A straight line through the whole plot, across ``axis`` (``x`` or ``y``)."""
    other = {"x": "y", "y": "x"}[axis]
    ends = {f"{axis}0": at, f"{axis}1": at, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", "layer": "below", "line": {"color": shade, "width": 1.5, "dash": dash}, **ends}


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
        "marker": {"symbol": MARKERS[place_of_marker(row)], "size": 11 if len(xs) == 1 else 6, "color": colour(row)},
        "hovertemplate": f"{hover}<extra>{html.escape(name)}</extra>",
    }


def thin(curve: Curve) -> Curve:
    """At most about ``MOST_POINTS`` of the points, evenly, the last one kept."""
    stride = max(1, -(-len(curve) // MOST_POINTS))
    return curve if stride == 1 else [*curve[:-1:stride], curve[-1]]


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _keys(runs: Sequence[RunView]) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run.curves))
