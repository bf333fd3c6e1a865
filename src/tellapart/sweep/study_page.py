"""The page of a study: what a person reads in it, each expectation with the numbers that decide it, and the tables.

Only the tables of the first decoding are open; the others are folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tellapart.evaluation.columns import markdown_cell
from tellapart.files import write_text
from tellapart.sweep.claims import Claim, markdown_table, over_seeds
from tellapart.sweep.instruments import instruments_parts, probed, probed_stages
from tellapart.sweep.page_parts import folded, hours_text, reading
from tellapart.sweep.references import on_world
from tellapart.sweep.study import Study, points_text
from tellapart.sweep.study_file import Columns
from tellapart.sweep.trainings import Resolved, option
from tellapart.world.schedules import SEEDED

POINTS = ("selected", "last")
RECALLS = {"listener_R@1": "R@1", "exact_recall@1": "exact R@1"}
"""Recalls that the table of the grid may show, the first that was measured, with its heading."""

ON_VAL = ("CIDEr", "grammatical")
"""Metrics that the table shows next to it, if measured."""


def write_page(
    study: Study,
    path: Path,
    *,
    claims: Sequence[Claim] = (),
    sections: Iterable[str] = (),
    references: Mapping[str, Mapping[str, float]] | None = None,
) -> Path:
    """Write the page of a finished study; returns its path.

    What a person wrote on the page between its two marks is kept (``page_parts.reading``).

    Args:
        study: finished.
        path: of the Markdown file.
        claims: what was expected, decided.
        sections: further parts, folded.
        references: name of a row of given captions -> its metrics on test.
    """
    given, file = references or {}, study.file
    parts = [f"# {file.title}\n\n{file.introduction}", folded(_protocol(study)), *instruments(study), reading(path)]
    if claims:
        parts.append("## What was expected\n\n" + "\n".join(claim.to_markdown() for claim in claims))
    for decoding in file.decodings:
        for name, columns in file.tables.items():
            title = f"## {file.split.capitalize()}, {decoding}" + (f": {name}" if name else "")
            table = f"{title}\n\n{test_table(study, decoding, columns, given)}"
            parts.append(table if decoding == file.decodings[0] else folded(table))
    if file.sets:
        first = file.decodings[0]
        parts.append(
            folded(
                f"## {file.split.capitalize()}, several captions per image\n\n{test_table(study, first, file.sets, {})}"
            )
        )
    parts += [folded(section) for section in (*sections, *_grid(study))]
    write_text(path, "\n\n".join(parts) + "\n")
    return path


def _protocol(study: Study) -> str:
    file, on = study.file, study.file.split
    redraws = "the training; data, start captioner, listeners and judge stay fixed"
    if on_world(_first(study)):
        starts = ", ".join(f"`{name}`" for name, row in file.rows.items() if row.start_of) or "the start captioner"
        redraws = f"{starts} and the post-training; world, listeners and judge stay fixed"
    taken = [f"`{name}` (of `{row.point_of}`)" for name, row in file.rows.items() if row.point_of]
    others = f" Rows with the point of another row: {', '.join(taken)}." if taken else ""
    chosen = (
        f"Points are tried with {_searching(study)} and chosen on **val** by {study.rule}; the chosen point is trained with "
        f"seeds {_seeds(study)} (mean ± standard deviation)."
    )
    unless = "" if on == "val" else " unless they say val"
    return f"""## Protocol

{_budget(study)} {chosen}{others} A seed redraws
{redraws}. *selected* is the checkpoint that the recipe's rule
selects on val, *last* the last step. Tables are on **{on}**{unless}. CIDEr and BLEU are printed times 100, words are
counted, everything else is in percent."""


def _first(study: Study) -> Resolved:
    """The recipe of the first row."""
    return next(iter(study.measured.values()))[0].recipe


def _searching(study: Study) -> str:
    """The seeds that points are tried with."""
    shown = ", ".join(map(str, study.search_seeds))
    return f"seeds {shown}" if len(study.search_seeds) > 1 else f"seed {shown}"


def _seeds(study: Study) -> str:
    """Those of the study, and of rows that have others."""
    others: dict[str, list[str]] = {}
    for name, row in study.file.rows.items():
        if row.seeds and row.seeds != study.seeds:
            others.setdefault(", ".join(map(str, row.seeds)), []).append(f"`{name}`")
    shown = ", ".join(map(str, study.seeds))
    return shown + "".join(f"; rows {', '.join(names)} with {seeds}" for seeds, names in others.items())


def _budget(study: Study) -> str:
    """Steps, images and evaluations that most rows share, and the rows with other steps."""
    keys = ("training.max_steps", "training.per_device_train_batch_size", "training.eval_steps")
    trained = {name: tasks[0].recipe for name, tasks in study.measured.items() if tasks[0].trains}
    if not trained:
        return ""
    found = {name: tuple(option(recipe, key) for key in keys) for name, recipe in trained.items()}
    shared = list(found.values())
    steps, images, every = max(shared, key=shared.count)
    others: dict[int, list[str]] = {}
    for name, (more, *_) in found.items():
        if more != steps:
            others.setdefault(more, []).append(f"`{name}`")
    named = "; ".join(f"{', '.join(names)}: {more}" for more, names in others.items())
    return (
        f"Trainings have {steps} steps{f' ({named})' if named else ''} of {images} images and are evaluated on val "
        f"every {every} steps. {hours_text(study.trained())}"
    )


def instruments(study: Study) -> list[str]:
    """What tower, start captioners and listeners see, on val; a page without listeners of the world, or on other images, has none
    of it.

    Args:
        study: finished.

    Returns:
        Parts of a page.
    """
    if not study.file.probed or not on_world(_first(study)):
        return []
    size = option(_first(study), "data.size")
    starts, listeners = _start_captioners(study), [f"world/{name}" for name in study.file.probed]
    stages = probed_stages(starts, listeners)
    found = study.noted("probes", partial(probed, size, stages), {"listener": stages})
    return instruments_parts(found, starts, listeners)


def _start_captioners(study: Study) -> list[str]:
    """The stages of the world that rows begin with, as the first seed has them."""
    paths = (option(tasks[0].recipe, "captioner.model_name_or_path") for tasks in study.measured.values())
    return sorted({path for path in paths if path in SEEDED})


def test_table(study: Study, decoding: str, columns: Columns, references: Mapping[str, Mapping[str, float]]) -> str:
    """The rows on test, at the selected checkpoint and the last step.

    Args:
        study: finished.
        decoding: of the captions.
        columns: metric -> heading and factor.
        references: name of a row of given captions -> its metrics.
    """
    lines = []
    for name, tasks in study.shown().items():
        for point in POINTS:
            found = study.metrics(name, point, decoding)
            if found:
                cells = [str(over_seeds(found, key, factor) or "-") for key, (_, factor) in columns.items()]
                lines.append([markdown_cell(name), point if tasks[0].trains else "-", *cells])
    for name, metrics in references.items():
        cells = [str(over_seeds([metrics], key, factor) or "-") for key, (_, factor) in columns.items()]
        lines.append([f"*{name}*", "-", *cells])
    return markdown_table(["row", "point", *(heading for heading, _ in columns.values())], lines)


def _grid(study: Study) -> list[str]:
    """Every point that was tried, the chosen one of each row in bold; nothing where no row was searched."""
    searched = {name: row for name, row in study.file.rows.items() if not row.start_of and (row.grid or not row.test)}
    tried = [(name, setting, study.tried(name, setting)) for name in searched for setting in study.grid(name)]
    if not tried:
        return []
    measured = tried[0][2][0].on_val(POINTS[0])
    recalls = [key for key in RECALLS if key in measured][:1]
    further = [key for key in ON_VAL if key in measured]
    lines = []
    for name, setting, tasks in tried:
        cells = [markdown_cell(name), points_text(searched[name], setting).removesuffix(", ") or "-"]
        cells.append(", ".join(str(task.steps_of["selected"]) for task in tasks))
        for checkpoint in POINTS:
            found = [task.on_val(checkpoint) for task in tasks]
            cells += [str(over_seeds(found, key) or "-") for key in (*recalls, *further)]
        best = setting == study.chosen(name) and len(study.grid(name)) > 1
        lines.append([f"**{cell}**" for cell in cells] if best else cells)
    shown = (*(RECALLS[key] for key in recalls), *further)
    heads = ["row", "point", "selected step", *shown, f"last: {shown[0]}", *shown[1:]]
    title = f"## The grid on val ({_searching(study)})"
    return [f"{title}\n\n{markdown_table(heads, lines)}\n\nIn bold the chosen point of each row."]
