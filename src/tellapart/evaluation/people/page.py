"""The figures as one Markdown page and one plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.evaluation.columns import describe
from tellapart.evaluation.people.measure import Figure, Measured
from tellapart.evaluation.people.protocols import TOLERANCE, Protocol
from tellapart.files import beside, require_written, write_json, write_text

STATISTICS = {
    "tau_b": "Kendall's tau-b",
    "tau_c": "Stuart's tau-c",
    "pearson": "Pearson's r",
    "accuracy": "accuracy, %",
}
MARK = "**differs**"
PAGE, FIGURES, PLOT = "people.md", "people.json", "people.png"
_BAR = 0.38


def by_protocol(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """Name of a protocol -> its figures, in order."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(figure.protocol.name, []).append(figure)
    return found


def write_people(folder: Path, measured: Sequence[Measured], how: Sequence[str]) -> Path:
    """Write ``people.md``, ``people.json`` and, where matplotlib is installed, ``people.png``; returns the page.

    Args:
        folder: to write to.
        measured: of all sets.
        how: sentences on how it was measured.
    """
    figures = [figure for one in measured for figure in one.figures]
    write_json(folder / FIGURES, [figure.to_json() for figure in figures])
    drawn = draw(folder / PLOT, figures)
    write_text(folder / PAGE, to_markdown(measured, how, plot=PLOT if drawn else ""))
    require_written(*(folder / name for name in (FIGURES, PAGE, *([PLOT] if drawn else []))))
    return folder / PAGE


def to_markdown(measured: Sequence[Measured], how: Sequence[str], *, plot: str = "") -> str:
    """The page.

    Args:
        measured: of all sets.
        how: sentences on how it was measured.
        plot: file name of the plot; nothing where it was not drawn.
    """
    figures = [figure for one in measured for figure in one.figures]
    lines = ["# Metrics against people", "", *how, ""]
    marked = [figure for figure in figures if figure.marked]
    compared = sum(bool(figure.published) for figure in figures)
    if compared:
        lines += [
            f"Values are times 100. Of {compared} values with a published one, {len(marked)} differ from it by more than "
            f"{TOLERANCE} (or than its printed digits allow) and are marked.",
            "",
        ]
    if plot:
        lines += [f"![Metrics against people]({plot})", ""]
    for name, own in by_protocol(figures).items():
        lines += [f"## {name}", "", _about(own[0].protocol, own), "", *table_lines(own), ""]
    for one in measured:
        lines += [*system_lines(one), ""] if one.systems else []
    return "\n".join(lines)


def _about(protocol: Protocol, figures: Sequence[Figure]) -> str:
    count = max(figure.judgements for figure in figures)
    source = f" Published: {protocol.source}." if protocol.source else ""
    return f"{protocol.about} {STATISTICS[protocol.statistic]}, {count:,} judgements.{source}".strip()


def table_lines(figures: Sequence[Figure]) -> list[str]:
    """One protocol as a Markdown table."""
    published = any(figure.published for figure in figures)
    heading = ["metric", "ours", "published", "difference", ""] if published else ["metric", "ours"]
    rows = [_row(figure)[: len(heading)] for figure in figures]
    return [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows)]


def system_lines(measured: Measured) -> list[str]:
    """The mean of each system by people and by each metric, and its rank in brackets."""
    systems = list(next(iter(measured.systems.values())))
    rows = []
    for key, means in measured.systems.items():
        rows.append([describe(key).label, *(_ranked(means[name], list(means.values())) for name in systems)])
    heading = ["mean (rank)", *systems]
    lines = [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows)]
    return [f"## {measured.name}: systems", "", "Mean score of each system's captions, and its rank.", "", *lines]


def _ranked(mean: float, among: Sequence[float]) -> str:
    """A mean and its rank; equal ones share theirs, and one that is not a number has none."""
    return f"{mean:.3f} ({1 + sum(other > mean for other in among)})" if math.isfinite(mean) else "-"


def _row(figure: Figure) -> list[str]:
    shown = bool(figure.published) and not math.isnan(figure.value)
    difference = f"{figure.value - float(figure.published):+.2f}" if shown else ""
    return [
        describe(figure.metric).label,
        figure.text,
        figure.published,
        difference,
        MARK if figure.marked else "",
    ]


def draw(path: Path, figures: Sequence[Figure]) -> bool:
    """Write the plot, a panel per protocol, with a bar per metric and published values as lines; False without matplotlib.

    Raises:
        UsageError: there is no figure.
    """
    if not figures:
        raise UsageError("there is nothing to draw: none of the metrics could be computed.")
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        return False
    panels = by_protocol(figures)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    canvas = Canvas(figsize=(4.2 * columns, 2.6 * rows), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, own) in zip(axes, panels.items(), strict=False):
        places = range(len(own))
        axis.barh(list(places), [figure.value for figure in own], color="0.6")
        for place, figure in zip(places, own, strict=True):
            if figure.published:
                ends = (place - _BAR, place + _BAR)
                axis.plot([float(figure.published)] * 2, ends, color="C3" if figure.marked else "C0", linewidth=2)
        axis.set_yticks(list(places), [describe(figure.metric).label for figure in own], fontsize=7)
        axis.invert_yaxis()
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(STATISTICS[own[0].protocol.statistic], fontsize=7)
        axis.tick_params(axis="x", labelsize=7)
    with beside(path) as temporary:
        canvas.savefig(temporary, format="png", dpi=120)
    return True
