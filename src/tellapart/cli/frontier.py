"""``tellapart frontier``: train a grid with several seeds, and draw recall against how captions read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.cli.console import note, say, table
from tellapart.cli.frontier_words import Words, frontier_parser, read_words
from tellapart.errors import UsageError
from tellapart.recipe.parse import help_of

if TYPE_CHECKING:
    from tellapart.cli.frontier_plan import Planned, PlannedCurve
    from tellapart.data.dataset import CaptionDataset
    from tellapart.experiments.frontier.records import Curve

SOME_FAILED = 1


def run(argv: Sequence[str]) -> int:
    """Train what is not done, measure, and write tables, pictures and the page; 1 if a training failed."""
    if "--help" in argv or "-h" in argv:
        say(help_of(frontier_parser()))
        return 0
    words = read_words(argv)
    from tellapart.cli.frontier_plan import Planner
    from tellapart.experiments.frontier.records import read_curves

    if words.options.picture and not words.options.dry_run:
        from tellapart.experiments.frontier.picture import require_matplotlib

        require_matplotlib()  # told now, not after hours of training
    added = [curve for folder in words.added for curve in read_curves(folder)]
    planned = Planner(words).curves()
    if words.options.dry_run:
        say(_listed(planned))
        return 0
    failed = _train(planned, words.options.workers)
    curves = _distinct([*(curve.measured() for curve in planned), *added])
    page = _write(words, curves, planned)
    for job in failed:
        note(f"failed: {job.name}: {job.last_words()} (see {job.folder / 'log.txt'})")
    say(str(page))
    if failed:
        note(f"{len(failed)} of the trainings failed; the same command tries them again and keeps the rest.")
    return SOME_FAILED if failed else 0


def _train(curves: Sequence[PlannedCurve], workers: int) -> list[Any]:
    """Run what is not done; the jobs that failed.

    Raises:
        KeyboardInterrupt: stopped on request; all that is done is kept.
    """
    from tellapart.experiments.jobs import run_jobs

    jobs = _each(curves)
    waiting = [planned for planned in jobs if not planned.job.done()]
    _build_world(waiting)
    for planned in waiting:
        planned.write()
    trainings = sum(planned.job.steps > 0 for planned in jobs)
    try:
        return run_jobs([planned.job for planned in jobs], f"{trainings} trainings", workers=workers)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("stopped; the same command goes on where it was") from error


def _each(curves: Sequence[PlannedCurve]) -> list[Planned]:
    """Every training once, even where curves share it."""
    return list({planned.job.folder: planned for curve in curves for planned in curve.everything()}.values())


def _build_world(waiting: Sequence[Planned]) -> None:
    """The stages of the built-in world that the recipes name, before two processes build the same."""
    from tellapart.recipe.fingerprint import stages_of

    needed = {(stage, each.recipe["data"]["size"]) for each in waiting for stage in stages_of(each.asked)}
    if not needed:
        return
    from tellapart.recipe.models import build_stage

    for stage, size in sorted(needed):
        build_stage(stage, size)


def _distinct(curves: Sequence[Curve]) -> list[Curve]:
    """The curves with a label of its own each."""
    from dataclasses import replace

    found: list[Curve] = []
    for curve in curves:
        same = sum(other.label == curve.label or other.label.startswith(f"{curve.label} (") for other in found)
        found.append(replace(curve, label=f"{curve.label} ({same + 1})") if same else curve)
    return found


def _write(words: Words, curves: Sequence[Curve], planned: Sequence[PlannedCurve]) -> Path:
    from tellapart.experiments.frontier.write import write_frontier

    options = words.options
    return write_frontier(
        options.output_dir,
        curves,
        asked=words.at,
        dataset=_dataset(words, planned) if options.images else None,
        images=options.images,
        title=options.title,
        picture=options.picture,
    )


def _dataset(words: Words, planned: Sequence[PlannedCurve]) -> CaptionDataset | None:
    """The images that were captioned, if they can still be read."""
    each = _each(planned)
    if not each:
        note("note: the page shows no images, because the points were added from elsewhere.")
        return None
    from tellapart.recipe.measured import DataOptions, load
    from tellapart.recipe.runs import made_by

    try:
        return load(DataOptions(split=each[0].asked["measure"]["split"]), made_by(each[0].recipe)).dataset
    except UsageError as error:
        note(f"note: the page shows no images, because they cannot be read: {error}")
        return None


def _listed(curves: Sequence[PlannedCurve]) -> str:
    """What is done and what is not."""
    if not curves:
        return "nothing to train"
    rows = [["training", "state", "folder"]]
    rows += [[each.job.name, "done" if each.job.done() else "to do", str(each.job.folder)] for each in _each(curves)]
    return table(rows)
