"""The page of a study: tables with spreads over seeds, and each expectation with the numbers that decide it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tellapart.evaluation.columns import markdown_cell
from tellapart.evaluation.results import EvaluationResult
from tellapart.files import read_object, write_text
from tellapart.sweep.claims import Claim, markdown_table, over_seeds, scale_of
from tellapart.sweep.study import Study, points_text
from tellapart.sweep.study_file import Columns
from tellapart.sweep.trainings import option
from tellapart.world.probe import PROBE
from tellapart.world.stages import resolve

POINTS = ("selected", "last")
ORDER_AWARE = 80.0
"""Below this percentage of full descriptions preferred to their shuffled words, a listener is called order-blind. Not all of
the preference is for order: shuffling also parts "top" from "left", so that where things are is lost."""

ON_VAL = ("listener_R@1", "CIDEr", "grammatical")
"""Metrics that the table of the grid shows."""


def write_page(
    study: Study,
    path: Path,
    *,
    claims: Sequence[Claim] = (),
    sections: Iterable[str] = (),
    references: Sequence[EvaluationResult] = (),
) -> Path:
    """Write the page of a finished study; returns its path.

    Args:
        study: finished.
        path: of the Markdown file.
        claims: what was expected, decided.
        sections: further parts, before what was expected.
        references: rows of given captions on test.
    """
    given = {result.name: result.metrics for result in references}
    parts = [_head(study), *_probe(study)]
    for decoding in study.file.decodings:
        for name, columns in study.file.tables.items():
            title = f"## Test, {decoding}" + (f": {name}" if name else "")
            parts.append(f"{title}\n\n{test_table(study, decoding, columns, given)}")
    if study.file.sets:
        first = study.file.decodings[0]
        parts.append(f"## Test, several captions per image\n\n{test_table(study, first, study.file.sets, {})}")
    parts += sections
    if claims:
        parts.append("## What was expected\n\n" + "\n".join(claim.to_markdown() for claim in claims))
    parts.append(f"## The grid on val (seed {study.seeds[0]})\n\n" + _grid(study))
    write_text(path, "\n\n".join(parts) + "\n")
    return path


def _head(study: Study) -> str:
    file = study.file
    seeds = ", ".join(map(str, study.seeds))
    starts = ", ".join(f"`{name}`" for name, row in file.rows.items() if row.start_of) or "the start captioner"
    taken = [f"`{name}` (of `{row.point_of}`)" for name, row in file.rows.items() if row.point_of]
    others = f" Rows with the point of another row: {', '.join(taken)}." if taken else ""
    return f"""# {file.title}

{file.introduction}

{_budget(study)} Points are tried with seed {study.seeds[0]} and chosen on **val** by the metric that selects a training's
checkpoints; the chosen point is trained with seeds {seeds} (mean ± standard deviation).{others} A seed redraws {starts} and
the post-training; world, listeners and judge stay fixed. *selected* is the checkpoint that the recipe's rule selects on val,
*last* the last step. The first tables are on **test**. CIDEr and BLEU are printed times 100, words are counted, everything
else is in percent."""


def _budget(study: Study) -> str:
    """Steps, images and evaluations that most rows share; those with others are in the table of the grid."""
    keys = ("training.max_steps", "training.per_device_train_batch_size", "training.eval_steps")
    trained = [tasks[0].recipe for tasks in study.measured.values() if tasks[0].trains]
    found = [tuple(option(recipe, key) for key in keys) for recipe in trained]
    if not found:
        return ""
    steps, images, every = max(found, key=found.count)
    return f"Trainings have {steps} steps of {images} images and are evaluated on val every {every} steps."


def _probe(study: Study) -> list[str]:
    """What the listeners know, on val."""
    names = study.file.probed
    if not names:
        return []
    size = option(next(iter(study.measured.values()))[0].recipe, "data.size")
    probes = [read_object(resolve(f"world/{name}", size=size) / PROBE) for name in names]
    lines = [[key, *(f"{probe['accuracy'][key]:.1f}" for probe in probes)] for key in probes[0]["accuracy"]]
    lines += [
        [f"R@1 of the text *{kind}*", *(f"{probe['recall'][kind]['t2i_R@1']:.1f}" for probe in probes)]
        for kind in probes[0]["recall"]
    ]
    blind = [name for name, probe in zip(names, probes, strict=True) if probe["accuracy"]["order"] < ORDER_AWARE]
    table = markdown_table(["asked", *names], lines)
    said = f"Order-blind: {', '.join(blind) or 'none'}."
    return [f"## What {', '.join(names[:-1])} and {names[-1]} know (val, %)\n\n{table}\n\n{said}"]


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


def _grid(study: Study) -> str:
    """Every point that was tried, the chosen one of each row in bold."""
    lines = []
    for name, row in study.file.rows.items():
        if row.start_of or not (row.grid or not row.test):
            continue
        chosen = study.chosen(name)
        for setting in study.grid(name):
            task = study.tried(name, setting)
            cells = [markdown_cell(name), points_text(row, setting).removesuffix(", ") or "-"]
            cells.append(str(task.steps_of["selected"]))
            for checkpoint in POINTS:
                cells += [f"{scale_of(key) * task.on_val(checkpoint)[key]:.1f}" for key in ON_VAL]
            lines.append(
                [f"**{cell}**" for cell in cells] if setting == chosen and len(study.grid(name)) > 1 else cells
            )
    heads = ["row", "point", "selected step", "R@1", "CIDEr", "grammatical", "last: R@1", "CIDEr", "grammatical"]
    return markdown_table(heads, lines) + "\n\nIn bold the chosen point of each row."
