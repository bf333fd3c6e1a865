"""The demo: the whole journey on the world, from nothing to one table and one page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.experiments.jobs import require, run_jobs
from tellapart.experiments.world_run import Setting
from tellapart.world.stages import build_all

if TYPE_CHECKING:
    from tellapart.evaluation.compare import Comparison
    from tellapart.evaluation.evaluate import Evaluation
    from tellapart.evaluation.report.record import Record
    from tellapart.evaluation.results import EvaluationResult
    from tellapart.experiments.world import World

STEPS = {"full": 60, "small": 4}
SETTINGS = {
    "xe": Setting(row="xe", steps=0),
    "scst-CLIP": Setting(row="scst-CLIP", learning_rate=3e-4),
    "dico": Setting(row="dico", learning_rate=3e-5, knob=0.2),
}
"""What the demo trains; scst at a rate at which it hacks its reward, dico at the rate the study chose on val."""

SHOWN = {
    "xe": ("selected", "xe"),
    "scst-CLIP": ("last", "scst-CLIP, last step"),
    "dico": ("selected", "dico, selected"),
}
"""Row -> which of its checkpoints the table shows, and under what name."""


def run_demo(output_dir: Path, *, size: str = "full", workers: int = 2) -> tuple[Comparison, Path]:
    """Build what is missing, train what is not done, evaluate on test; returns the table and the page's path.

    Args:
        output_dir: folder of the demo's runs and of ``report.html``.
        size: ``full``, or ``small`` for a run of a minute whose numbers mean little.
        workers: trainings at a time, one thread each.

    Raises:
        UsageError: a training failed, or the listener fails its probe.
    """
    build_all(size)
    settings = {row: _sized(setting, size) for row, setting in SETTINGS.items()}
    jobs = [setting.job(output_dir, test=True) for setting in settings.values()]
    require(run_jobs(jobs, "xe, scst and dico", workers=workers))
    return _present(output_dir, settings, size)


def _sized(setting: Setting, size: str) -> Setting:
    steps = min(setting.steps, STEPS[size])
    return replace(setting, size=size, steps=steps, eval_steps=10 if size == "full" else 2)


def _present(output_dir: Path, settings: dict[str, Setting], size: str) -> tuple[Comparison, Path]:
    from tellapart.evaluation.compare import compare_results
    from tellapart.evaluation.report import RunView, read_run, write_report
    from tellapart.evaluation.report.runs import read_curves
    from tellapart.experiments.world import World

    parts = World.load(size)
    slug = parts.evaluation("test").protocol.slug()
    views = []
    for row, setting in settings.items():
        point, name = SHOWN[row]
        folder = output_dir / setting.key()
        view = read_run(folder / point, name=name, protocol=slug)
        views.append(
            replace(
                view,
                result=replace(view.result, name=name),
                curves=read_curves(folder / "metrics.jsonl"),
                record=_record(folder, point),
            )
        )
    views += [RunView(result.name, result) for result in reference_rows(parts)]
    title = "Captions that tell images apart: the built-in world"
    page = write_report(output_dir / "report.html", views, dataset=parts.dataset("test"), title=title)
    return compare_results([view.result for view in views]), page


def _record(folder: Path, point: str) -> Record | None:
    """How a run was made; the page must not call another point of it the selected one."""
    from tellapart.evaluation.report.record import read_record

    record = read_record(folder)
    return record if record is None or point == "selected" else replace(record, selected={})


def reference_rows(parts: World, *, meteor: bool = False) -> list[EvaluationResult]:
    """Floor and ceiling on test: human captions, full descriptions, and saying nothing; on request with METEOR."""
    from tellapart.evaluation.meteor import MeteorMeasure
    from tellapart.world import load_scenes
    from tellapart.world.captions import full_description

    def evaluation(references: dict[str, list[str]]) -> Evaluation:
        return parts.evaluation("test", measures=(MeteorMeasure(references),) if meteor else ())

    references = parts.dataset("test").references
    others = {image_id: texts[1:] for image_id, texts in references.items()}
    scenes = load_scenes("test", size=parts.size)
    full = {image_id: full_description(scene) for image_id, scene in scenes.items()}
    note = "every attribute of every object, in the references' grammar"
    every = evaluation(references)
    return [evaluation(others).human(), every.score(full, name="full description", note=note), every.empty()]
