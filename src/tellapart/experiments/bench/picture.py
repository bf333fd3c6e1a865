"""The table as a picture: how much captions are like people's against how well they tell images apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tellapart.evaluation.report.curves import COLOURS
from tellapart.experiments.bench.table import COLUMNS, PLANE, Line, front
from tellapart.sweep.frontier.picture import MARKERS, require_matplotlib, save

UPWARDS = ("exact_recall@1", "judge_R@1", "listener_R@1")
"""A panel each: as far as captions are true, by a retriever that was no reward, by the one that was."""


def draw(path: Path, lines: Sequence[Line]) -> list[Path]:
    """Write the picture beside ``path`` as PNG and SVG; returns the paths.

    Args:
        path: without ending.
        lines: of the table.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure = require_matplotlib()(figsize=(4.2 * len(UPWARDS), 5.2), layout="constrained")
    for panel, key in zip(figure.subplots(1, len(UPWARDS)), UPWARDS, strict=True):
        _panel(panel, lines, PLANE[0], key)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(
        "mean over seeds, bars to the lowest and highest seed; ringed: not dominated in its panel", fontsize=9
    )
    return save(figure, path)


def _panel(panel: Any, lines: Sequence[Line], x: str, y: str) -> None:
    marked = front(lines, (x, y))
    for number, line in enumerate(lines):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        (across, sides), (up, heights) = (_spread(line, key) for key in (x, y))
        panel.errorbar(across, up, xerr=sides, yerr=heights, color=colour, linewidth=0.8, alpha=0.6)
        panel.plot(
            across, up, marker, color=colour, markersize=6, linestyle="none", label=line.name.replace("$", r"\$")
        )
        if line.name in marked:
            panel.plot(across, up, "o", markersize=12, markerfacecolor="none", markeredgecolor="0.2", linestyle="none")
    panel.set_xlabel(f"{COLUMNS[x][0]} (higher is better)")
    panel.set_ylabel(COLUMNS[y][0])
    panel.grid(color="0.92")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _spread(line: Line, key: str) -> tuple[float, list[list[float]]]:
    """The mean as printed, and how far it is to the lowest and to the highest seed, as matplotlib takes it."""
    factor = COLUMNS[key][1]
    values = [factor * one[key] for one in line.metrics]
    mean = factor * line.mean(key)
    return mean, [[mean - min(values)], [max(values) - mean]]
