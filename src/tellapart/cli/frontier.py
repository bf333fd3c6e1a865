"""``tellapart frontier``: train a grid with several seeds, and draw recall against how captions read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tellapart.cli.console import note, say, table
from tellapart.cli.frontier_words import FrontierOptions, Words, frontier_help, read_words, seeds_of
from tellapart.errors import UsageError
from tellapart.sweep.curves import Planner
from tellapart.sweep.tasks import Sweep, distinct

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.sweep.curves import PlannedCurve
    from tellapart.sweep.jobs import Job
    from tellapart.sweep.records import Curve
    from tellapart.sweep.tasks import Task

SOME_FAILED = 1
MEASURING = ("split", "num_beams", "samples", "meteor", "language_model", "grammar")
"""Options that say how points are measured, in the words of ``tellapart score``; null ones come from the recipe."""


def run(argv: Sequence[str]) -> int:
    """Train what is not done, measure, and write tables, pictures and the page; 1 if a training failed."""
    if "--help" in argv or "-h" in argv:
        say(frontier_help())
        return 0
    words = read_words(argv)
    from tellapart.sweep.records import read_curves

    if words.options.picture and not words.options.dry_run:
        from tellapart.sweep.frontier.picture import require_matplotlib

        require_matplotlib()  # told now, not after hours of training
    added = [curve for folder in words.added for curve in read_curves(folder)]
    if words.options.dry_run:
        with TemporaryDirectory() as unpacked:  # nothing is left where the trainings would go
            say(_listed(_everything(plan(words, _sweep(words, Path(unpacked))))))
        return 0
    sweep = _sweep(words, words.options.output_dir)
    planned = plan(words, sweep)
    tasks = _everything(planned)
    failed = _train(sweep, tasks, words.options)
    curves = _distinct([*(curve.measured() for curve in planned), *added])
    page = _write(words, curves, planned)
    for job in failed:
        note(f"failed: {job.name}: {job.last_words()} (see {job.folder / 'log.txt'})")
    say(str(page))
    if failed:
        note(f"{len(failed)} of the trainings failed; the same command tries them again and keeps the rest.")
    return SOME_FAILED if failed else 0


def _sweep(words: Words, unpacked: Path) -> Sweep:
    """The trainings that are there, and those of the archive, which is unpacked below a folder."""
    from tellapart.sweep.kept import restore

    options = words.options
    archive = options.kept
    if options.dry_run and archive is not None and not archive.exists():
        archive = None  # whose folder would be made
    kept = None if archive is None else restore(archive, unpacked)
    return Sweep(options.output_dir, common=words.overrides, redraw_start=options.redraw_start, kept=kept)


def _everything(planned: Sequence[PlannedCurve]) -> list[Task]:
    return distinct(task for curve in planned for task in curve.everything())


def plan(words: Words, sweep: Sweep) -> list[PlannedCurve]:
    """The curves that a command line asks for, before anything trains.

    Raises:
        UsageError: an option of a grid does not exist, or a value is of a wrong type.
    """
    asked = {name: getattr(words.options, name) for name in MEASURING}
    return Planner(sweep, lambda first: seeds_of(words.options.seeds, first), asked).curves(words.methods)


def _train(sweep: Sweep, tasks: Sequence[Task], options: FrontierOptions) -> list[Job]:
    """Do what is not done, and keep what is, also when stopped; the jobs that failed."""
    from tellapart.sweep.kept import keep

    try:
        return sweep.run(tasks, workers=options.workers)
    finally:
        if options.kept:
            keep(tasks, options.kept, whole=all(task.done() for task in tasks))


def _distinct(curves: Sequence[Curve]) -> list[Curve]:
    """The curves with a label of its own each."""
    from dataclasses import replace

    found: list[Curve] = []
    for curve in curves:
        same = sum(other.label == curve.label or other.label.startswith(f"{curve.label} (") for other in found)
        found.append(replace(curve, label=f"{curve.label} ({same + 1})") if same else curve)
    return found


def _write(words: Words, curves: Sequence[Curve], planned: Sequence[PlannedCurve]) -> Path:
    from tellapart.sweep.frontier.write import write_frontier

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
    tasks = [task for curve in planned for task in curve.everything()]
    if not tasks:
        note("note: the page shows no images, because the points were added from elsewhere.")
        return None
    from tellapart.sweep.trainings import dataset_of

    (measure,) = tasks[0].measures.values()
    try:
        return dataset_of(tasks[0].recipe, measure["split"])
    except UsageError as error:
        note(f"note: the page shows no images, because they cannot be read: {error}")
        return None


def _listed(tasks: Sequence[Task]) -> str:
    """Finished and open trainings."""
    if not tasks:
        return "nothing to train"
    rows = [["training", "state", "folder"]]
    rows += [[task.name, "done" if task.done() else "to do", str(task.folder)] for task in tasks]
    return table(rows)
