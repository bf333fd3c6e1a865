"""The table over every method, and its picture: each row is a recipe, trained with every seed and measured alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tellapart.evaluation.columns import describe, markdown_cell
from tellapart.evaluation.report.curves import COLOURS
from tellapart.files import write_text
from tellapart.sweep.claims import markdown_table
from tellapart.sweep.dominance import Line, dominates, front, unbeaten
from tellapart.sweep.frontier.picture import MARKERS, require_matplotlib, save
from tellapart.sweep.page_parts import folded, hours_text
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study, value_text
from tellapart.sweep.study_file import Columns
from tellapart.sweep.study_page import instruments
from tellapart.sweep.trainings import option

TITLES = {"selected": "The selected checkpoint", "last": "The last step"}
PLANE = ("CIDEr", "exact_recall@1")
"""How much captions are like people's, and how well they tell images apart as far as they are true."""

PROMISED = ("exact_recall@1", "truthful", "CIDEr")
"""Captions that tell images apart, are true and are like people's."""

UPWARDS = ("exact_recall@1", "judge_R@1", "listener_R@1")
"""A panel each: as far as captions are true, by a retriever that was no reward, by the one that was."""


def write(study: Study, docs: Path) -> Path:
    """Write page and picture into a folder; returns the page's path.

    Raises:
        UsageError: matplotlib is not installed.
    """
    (columns,) = study.file.tables.values()
    lines = {point: table_lines(study, point) for point in TITLES}
    picture = Path(study.file.page).stem
    draw(docs / picture, lines["selected"])
    parts = [f"# {study.file.title}\n\n{study.file.introduction}", *instruments(study)]
    parts += [hours_text(study.trained()), f"![recall against CIDEr]({picture}.png)"]
    selected, last = (
        f"## {TITLES[point]}\n\n{table(found, columns)}\n\n{best(found)}" for point, found in lines.items()
    )
    parts += [selected, folded(last)]
    parts += [folded(decoded(study, point)) for point in TITLES if len(study.file.decodings) > 1]
    parts += [folded("## The recipe of each row\n\n" + _recipes(study))]
    write_text(docs / study.file.page, "\n\n".join(parts) + "\n")
    return docs / study.file.page


def table_lines(study: Study, point: str, decoding: str = "") -> list[Line]:
    """The table's rows at ``selected`` or ``last``; a start captioner has but one checkpoint, which stands for both.

    Args:
        study: measured.
        point: ``selected`` or ``last``.
        decoding: of the captions; by default the first one, which rows that search have in its place.
    """
    shown = decoding or study.file.decodings[0]
    return [
        Line(
            name,
            study.metrics(name, point if tasks[0].trains else "selected", shown),
            tasks[0].seconds if tasks[0].trains else None,
        )
        for name, tasks in study.measured.items()
        if not (decoding and study.file.rows[name].measure)
    ]


def table(lines: Sequence[Line], columns: Columns) -> str:
    """The rows in the order given.

    ``*`` marks the front of :data:`PLANE`; the last two columns count the rows that a row dominates and those that dominate it.
    """
    marked = front(lines, PLANE)
    heads = ["row", *(heading for heading, _ in columns.values()), "CPU s/step", "dominates", "dominated by"]
    rows = []
    for line in lines:
        cells = [markdown_cell(line.name) + (" *" if line.name in marked else "")]
        for key, (_, factor) in columns.items():
            cells.append(str(line.over_seeds(key, factor) or "-"))
        cells.append("-" if line.seconds is None else f"{line.seconds:.2f}")
        cells.append(str(sum(dominates(line, other) for other in lines)))
        cells.append(str(sum(dominates(other, line) for other in lines)))
        rows.append(cells)
    return markdown_table(heads, rows)


def decoded(study: Study, point: str) -> str:
    """Each row with every decoding, and which of all these none is ahead of."""
    lines = {decoding: table_lines(study, point, decoding) for decoding in study.file.decodings}
    heads = ["row", *(f"{key}, {decoding}" for decoding in lines for key in PROMISED)]
    rows = []
    for same in zip(*lines.values(), strict=True):
        cells = [str(line.over_seeds(key)) for line in same for key in PROMISED]
        rows.append([markdown_cell(same[0].name), *cells])
    first, *others = lines
    named = [replace(line, name=f"{line.name}, {decoding}") for decoding in others for line in lines[decoding]]
    found = best([*table_lines(study, point), *named])
    title = f"{TITLES[point]}, {', '.join(others[:-1])} and {others[-1]} next to {first}"
    told = f"{found} Rows are those of the table above, and of {' and '.join(others)}."
    return f"## {title}\n\n{markdown_table(heads, rows)}\n\n{told}"


def best(lines: Sequence[Line]) -> str:
    """Which rows no other row is ahead of in two of :data:`PROMISED`."""
    names = unbeaten(lines, PROMISED)
    told = ", ".join(f"`{name}`" for name in names) or "none"
    keys = " and ".join([", ".join(PROMISED[:-1]), PROMISED[-1]])
    return f"Rows that no other row is ahead of in two of {keys} (means over seeds): {told}."


def _recipes(study: Study) -> str:
    """What each row's training has: its recipe, start captioner, budget and learning rate."""
    keys = ("training.max_steps", "training.per_device_train_batch_size", "training.learning_rate")
    lines = []
    for name, row in study.file.rows.items():
        recipe = study.measured[name][0].recipe
        begun = "no training" if row.start_of else f"`{row.recipe}`"
        method = "-" if row.start_of else f"`{recipe['method']}`"
        cells = [markdown_cell(name), begun + _search(row.measure), method]
        cells.append(f"`{option(recipe, 'captioner.model_name_or_path')}`")
        cells += ["-"] * len(keys) if row.start_of else [_text(option(recipe, key)) for key in keys]
        lines.append(cells)
    heads = ["row", "recipe", "method", "begins with", "steps", "images per step", "learning rate"]
    return markdown_table(heads, lines)


def _search(measure: Mapping[str, Any]) -> str:
    """How captions are drawn by a row that searches."""
    if not measure:
        return ""
    told = f"; {measure['num_beams']} beams"
    return told + (f", told apart by `world/listener` and `{measure['verifier']}`" if measure.get("apart") else "")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{part} {value_text(rate)}" for part, rate in value.items())
    return value_text(value)


def draw(path: Path, lines: Sequence[Line]) -> list[Path]:
    """Write the picture next to ``path`` as PNG and SVG; returns the paths.

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
        label = line.name.replace("$", r"\$")  # else read as mathematics
        panel.plot(across, up, marker, color=colour, markersize=6, linestyle="none", label=label)
        if line.name in marked:
            panel.plot(across, up, "o", markersize=12, markerfacecolor="none", markeredgecolor="0.2", linestyle="none")
    panel.set_xlabel(f"{describe(x).label} (higher is better)")
    panel.set_ylabel(describe(y).label)
    panel.grid(color="0.92")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _spread(line: Line, key: str) -> tuple[float, list[list[float]]]:
    """The mean as printed, and how far it is to the lowest and to the highest seed, as matplotlib takes it."""
    found = line.over_seeds(key)
    assert found is not None, "every row has what the picture shows"
    return found.mean, [[found.mean - min(found.values)], [max(found.values) - found.mean]]


if __name__ == "__main__":
    run(__file__, write=write)
