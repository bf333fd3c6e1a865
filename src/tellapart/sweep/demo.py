"""The demo: the whole journey on the world, from nothing to one table and one page; ``demo.yaml`` says what it trains."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.run_files import LOG_FILE
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import read_study
from tellapart.sweep.tasks import Task
from tellapart.world.stages import build_all

if TYPE_CHECKING:
    from tellapart.evaluation.compare import Comparison
    from tellapart.evaluation.report import RunView
    from tellapart.evaluation.results import EvaluationResult

LAST = ("scst-CLIP, last step",)
"""Rows that are shown at their last step; the others are shown at the selected checkpoint."""

SMALL = {"data.size": "small", "training.max_steps": 4, "training.eval_steps": 2}
"""Options of a run of a minute, whose numbers mean little."""


def run_demo(output_dir: Path, *, size: str = "full", workers: int = 2) -> tuple[str, Comparison, Path]:
    """Build what is missing, train what is not done, evaluate on test.

    Returns the result in a sentence, the table and the page's path.

    Args:
        output_dir: folder of the demo's runs and of ``report.html``.
        size: ``full``, or ``small`` for a run of a minute whose numbers mean little.
        workers: trainings at a time, one thread each.

    Raises:
        UsageError: a training failed, or the listener fails its probe.
    """
    with resources.as_file(resources.files("tellapart.sweep") / "demo.yaml") as path:
        file = read_study(path)
    file = file.having(set(file.rows), SMALL) if size == "small" else file
    study = Study(file, output_dir)
    build_all(size)
    study.run(workers=workers)
    return _present(study, output_dir / file.page)


def _present(study: Study, page: Path) -> tuple[str, Comparison, Path]:
    from tellapart.evaluation.compare import compare_results
    from tellapart.evaluation.report import RunView, write_report
    from tellapart.evaluation.report.summary import verdict
    from tellapart.sweep.references import reference_rows
    from tellapart.sweep.trainings import dataset_of

    recipe = next(iter(study.measured.values()))[0].recipe
    views = [_view(study, name, task) for name, (task,) in study.measured.items()]
    views = [replace(view, result=_beside(views[0].result, view.result)) for view in views]
    views += [RunView(result.name, result) for result in reference_rows(recipe)]
    write_report(page, views, dataset=dataset_of(recipe, "test"), title=study.file.title)
    return verdict(views), compare_results([view.result for view in views]), page


def _beside(first: EvaluationResult, result: EvaluationResult) -> EvaluationResult:
    """A result that may be compared with the first; how its captions were drawn, if otherwise, is said in a note."""
    drawn = result.protocol.decoding
    if drawn == first.protocol.decoding:
        return result
    note = f"captions drawn otherwise than in the other rows: {drawn}"
    return replace(result, protocol=replace(result.protocol, decoding=first.protocol.decoding, note=note))


def _view(study: Study, name: str, task: Task) -> RunView:
    from tellapart.evaluation.report import RunView
    from tellapart.evaluation.report.record import read_record
    from tellapart.evaluation.report.runs import read_curves

    point = "last" if name in LAST else "selected"
    measured = study.evaluation(task, point)
    assert measured is not None, "a finished row has both checkpoints"
    result = replace(measured.result(), name=name)
    if not task.trains:
        return RunView(name, result)
    record = read_record(task.folder)
    if record is not None and point == "last":
        record = replace(record, selected={})  # the page must not call this point the selected one
    return RunView(name, result, curves=read_curves(task.folder / LOG_FILE), record=record)
