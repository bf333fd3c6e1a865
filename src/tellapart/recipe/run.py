"""Running a recipe: its output folder, the training, and the evaluation of the selected checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tellapart.errors import UsageError
from tellapart.files import checkpoints, read_json, remove_half_written, write_text
from tellapart.launch import is_main, processes
from tellapart.listeners.kinds import FOLDER
from tellapart.locks import NAME as LOCK
from tellapart.locks import Lock
from tellapart.recipe.clearing import RECIPE_FILE, RUN_FILES, SKIPPED_FILE, check_unread, clear
from tellapart.recipe.schema import TRAINING
from tellapart.run_files import LOG_FILE, NONFINITE_FILE, RECORD_FILE, STATE_FILE

if TYPE_CHECKING:
    from tellapart.captioners.base import Captioner
    from tellapart.data.loader import TrainingData
    from tellapart.recipe.build import Built, Watch
    from tellapart.recipe.listener import ListenerRecipe
    from tellapart.recipe.recipe import Recipe
    from tellapart.training.run import Run

logger = logging.getLogger(__name__)

AnyRecipe = TypeVar("AnyRecipe", "Recipe", "ListenerRecipe")

_ENDED = (NONFINITE_FILE, STATE_FILE, FOLDER)
"""What is in a run's folder after its first checkpoint, also when somebody has removed its checkpoints."""

_MEASURED = ("captioner", "own_listener")
"""Parts that an evaluation reads."""


def train(recipe: Recipe, *, overwrite: bool = False, built: Built | None = None, controls: bool = False) -> Run:
    """Train, then measure the selected captioner and keep the result and a model card with the run.

    Args:
        recipe: what to train.
        overwrite: delete what an earlier training left in the output folder.
        built: the recipe, built before.
        controls: allow rewards that are controls of studies.

    Raises:
        UsageError: the folder holds another training, another process trains into it, or a part is missing or broken.
    """
    from tellapart.training.denormals import denormals_flushed

    with held(recipe.training.output_dir), denormals_flushed():
        return train_held(recipe, overwrite=overwrite, built=built, controls=controls)


def train_held(recipe: Recipe, *, overwrite: bool = False, built: Built | None = None, controls: bool = False) -> Run:
    """The same as ``train``, into a folder that ``held`` holds."""
    from tellapart.evaluation.card import CARD_FILE, write_card
    from tellapart.recipe.images import keep_list, tell_replaced
    from tellapart.recipe.rewards import refuse_controls

    if not controls:
        refuse_controls(recipe)
    recipe, overwrite = checked(recipe, overwrite=overwrite)
    built = _built(recipe) if built is None else built
    output_dir = recipe.training.output_dir
    if is_main():
        tidy(output_dir)
    if overwrite:
        clear(output_dir)
    resumes = recipe.training.resume_from_checkpoint
    # A launcher that restarts asks for the last checkpoint from the first start on.
    fresh = not resumes or (str(resumes) in ("True", "last") and not checkpoints(output_dir))
    if is_main():
        keep_list(built.data, built.skipped, output_dir / SKIPPED_FILE, resumes=not fresh)
    watch = _KeepingFirst(built.watch, output_dir) if built.watch is not None and fresh else built.watch
    try:
        done = run_loop(recipe, built.objective, built.data, watch)
    finally:
        if is_main():
            tell_replaced(built.data, output_dir / SKIPPED_FILE)
    _measure_selected(built, done)
    if is_main():
        references = built.watch.evaluation.dataset.references if built.watch is not None else None
        if write_card(output_dir, references=references) is None:
            logger.warning("note: %s was not written by tellapart and stays as it is.", output_dir / CARD_FILE)
    return done


def _built(recipe: Recipe) -> Built:
    check_evaluated(recipe)
    return recipe.build()


def check_evaluated(recipe: Recipe) -> None:
    """Raise where a training would select or watch by evaluations that its recipe switches off; whoever runs the loop with an
    evaluation of their own may.

    Raises:
        UsageError: naming the option.
    """
    from tellapart.training.start import require_evaluation

    require_evaluation(recipe.training, recipe.evaluation.split is not None or recipe.evaluation.held_out is not None)


def run_loop(recipe: Recipe | ListenerRecipe, objective: Any, data: TrainingData, watch: Any) -> Run:
    """Train what a recipe built, and keep the recipe with the run; a resume that is refused leaves the folder as it was."""
    from tellapart.captioners.modes import quiet
    from tellapart.recipe.fingerprint import contents_of, measured_by
    from tellapart.training.loop import train as loop

    about = recipe.training.output_dir / RECORD_FILE
    before = about.read_bytes() if about.is_file() else b""
    written = about.with_name(RECIPE_FILE)
    contents, measured = contents_of(recipe) if is_main() else {}, measured_by(recipe)
    try:
        with quiet():
            done = loop(
                objective,
                data,
                recipe.training,
                evaluate=watch,
                recipe=recipe.resolved,
                contents=contents,
                measured=measured,
            )
    finally:
        if is_main() and about.is_file() and about.read_bytes() != before:
            write_text(written, recipe.to_yaml())
    if is_main() and not written.is_file():  # the run was killed before, and resumed without a change to run.json
        write_text(written, recipe.to_yaml())
    return done


@dataclass
class _KeepingFirst:
    """The evaluation, which keeps the first result, that of the start model, for the report and the model card."""

    watch: Watch
    output_dir: Path
    kept: Path | None = None

    def __call__(self, objective: Any) -> dict[str, float]:
        from tellapart.evaluation.report.runs import START_FOLDER, START_NAME

        metrics = self.watch(objective)
        if self.kept is None and self.watch.last is not None:
            self.kept = replace(self.watch.last, name=START_NAME).save(self.output_dir / START_FOLDER)
        return metrics


def _measure_selected(built: Built, done: Run) -> None:
    """Save the evaluation of the selected checkpoint, on the main process; the others gather frozen models in shards along."""
    if is_main():
        _save_selected(built, done)
    done.turns.finish()


def _save_selected(built: Built, done: Run) -> None:
    """The selected checkpoint is measured again where another step was measured last."""
    from tellapart.evaluation.results import CHOSE

    watch = built.watch
    if watch is None:
        return
    result = watch.last
    if result is None or (done.best is not None and done.best.step != done.step):
        result = watch.measure(_selected(built, done))
    if done.best is not None:
        result = replace(result, details={**result.details, CHOSE: done.best.metric})
    watch.last = result
    result.save(done.output_dir)


def _selected(built: Built, done: Run) -> Captioner:
    """The captioner of the selected checkpoint: the one that was trained, or another one where that is in shards."""
    from tellapart.captioners.huggingface import HuggingFaceCaptioner
    from tellapart.recipe.models import device
    from tellapart.training.sharding import is_sharded

    if is_sharded(built.captioner):
        section = built.recipe.captioner
        found = HuggingFaceCaptioner.from_pretrained(done.selected / "captioner", dtype=section.dtype)
        return found.to(device())
    for name, part in built.objective.named_children():
        if name in _MEASURED:
            part.load_weights(done.selected / name)
    return built.captioner


@contextmanager
def held(output_dir: Path) -> Iterator[None]:
    """Hold an output folder against other trainings while the block runs; the main process does, for all of its launch.

    Raises:
        TakenError: another process trains into it.
    """
    if not is_main() or (output_dir.exists() and not output_dir.is_dir()):  # the latter has an error message of its own
        yield
        return
    with Lock(output_dir / LOCK, "training into"):
        yield


def checked(recipe: AnyRecipe, *, overwrite: bool) -> tuple[AnyRecipe, bool]:
    """The recipe and whether to clear the folder, where training would neither lose a run nor continue another one.

    The same recipe starts again in the folder of a run that was stopped before its first checkpoint, and any recipe in that of a
    run that ended before its first step. Such runs left only a log.

    Raises:
        UsageError: see ``check_output_dir``.
    """
    output_dir = recipe.training.output_dir
    check_output_dir(recipe, overwrite=overwrite)
    if not overwrite and _was_stopped_early(recipe):
        logger.warning(
            "note: the run in %s was stopped before its first checkpoint, and this one begins anew there.", output_dir
        )
        resolved = recipe.resolved | {TRAINING: recipe.resolved[TRAINING] | {"resume_from_checkpoint": None}}
        fresh = replace(recipe.training, resume_from_checkpoint=None)
        return replace(recipe, training=fresh, resolved=resolved), True
    return recipe, overwrite


def _was_stopped_early(recipe: Recipe | ListenerRecipe) -> bool:
    """Whether the folder holds the beginning of this run, or of another that made no step, and no checkpoint of it; one that
    diverged has an end."""
    from tellapart.training.checkpoint import step_of
    from tellapart.training.logs import read_lines

    output_dir = recipe.training.output_dir
    before = recorded(output_dir)
    if not before or checkpoints(output_dir) or any((output_dir / name).exists() for name in _ENDED):
        return False
    resumes = recipe.training.resume_from_checkpoint
    if resumes not in (None, False, True, "last") or processes() > 1:
        return False  # several processes would not see the same folder
    if _without_folder(before) == _without_folder(json.loads(json.dumps(recipe.resolved))):
        return True
    if resumes or (step_of(output_dir / "best") or 0) > 0:
        return False
    return not any(line.get("step") != 0 for line in read_lines(output_dir / LOG_FILE))


def _without_folder(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without what says where it runs."""
    loop = {k: v for k, v in resolved.get(TRAINING, {}).items() if k not in ("output_dir", "resume_from_checkpoint")}
    return {**resolved, TRAINING: loop}


def check_output_dir(recipe: Recipe | ListenerRecipe, *, overwrite: bool = False) -> None:
    """Raise where training would lose a run, or continue another one.

    Raises:
        UsageError: the folder holds a run that is neither resumed nor overwritten, or the run to resume is another.
    """
    output_dir, resumes = recipe.training.output_dir, recipe.training.resume_from_checkpoint
    if output_dir.exists() and not output_dir.is_dir():
        raise UsageError(f"--output_dir {output_dir} is a file: name a folder.")
    before = recorded(output_dir)
    if before is None:
        _check_replaced(recipe)
    if overwrite:
        _check_overwrite(recipe)
        check_unread(recipe, *_results(recipe))
        return
    if before is None or _was_stopped_early(recipe):
        return
    if not resumes:
        resume = "continue it with --resume_from_checkpoint last, " if checkpoints(output_dir) else ""
        raise UsageError(
            f"--output_dir {output_dir} already holds a run: name another folder, {resume}or delete it with "
            "--overwrite_output_dir."
        )
    if before and (difference := _difference(recipe, before)):
        raise UsageError(
            f"the run in {output_dir} has {difference}: resume it with its own recipe, or name another --output_dir."
        )


def _check_replaced(recipe: Recipe | ListenerRecipe) -> None:
    """Raise where what a training leaves would take the place of somebody's folder."""
    output_dir = recipe.training.output_dir
    selected = () if recipe.training.metric_for_best_model is None else ("best",)
    for name in (*selected, *_results(recipe)):
        if (output_dir / name).exists():
            raise UsageError(
                f"--output_dir {output_dir} has {name!r}, which no run recorded there has made and training would replace: name "
                "another folder."
            )


def _results(recipe: Recipe | ListenerRecipe) -> tuple[str, ...]:
    """Folders in which the training leaves its result, besides checkpoints."""
    from tellapart.recipe.listener import ListenerRecipe

    return (FOLDER,) if isinstance(recipe, ListenerRecipe) else ()


def _check_overwrite(recipe: Recipe | ListenerRecipe) -> None:
    if recipe.training.resume_from_checkpoint:
        raise UsageError("--overwrite_output_dir and --resume_from_checkpoint exclude each other: give one.")
    if processes() > 1:
        raise UsageError(
            f"--overwrite_output_dir needs a single process: remove {recipe.training.output_dir} yourself."
        )


def _difference(recipe: Recipe | ListenerRecipe, before: Mapping[str, Any]) -> str | None:
    """Where a recorded recipe differs in what makes a run; how long it goes and how it is evaluated may change."""
    from tellapart.recipe.fingerprint import run_decisions

    was, asked = run_decisions(before, recipe.schema), run_decisions(recipe.resolved, recipe.schema)
    for name in sorted({*was, *asked}):
        if was.get(name) != asked.get(name):
            default = recipe.schema.defaults.get(name)
            return f"{name} {was.get(name, default)!r}, not {asked.get(name, default)!r}"
    return None


def recorded(output_dir: Path) -> dict[str, Any] | None:
    """The recipe of the run in a folder, empty if it is unknown; None if there is no run."""
    if not any((output_dir / name).exists() for name in (RECORD_FILE, LOG_FILE)):
        return {} if any(output_dir.glob("checkpoint-*")) else None
    try:
        found = read_json(output_dir / RECORD_FILE)["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    whole = isinstance(found, dict) and isinstance(found.get(TRAINING, {}), dict)  # else somebody changed it
    return found if whole else {}


def tidy(output_dir: Path) -> None:
    """Remove what killed processes left half-written."""
    from tellapart.evaluation.card import CARD_FILE

    remove_half_written(output_dir, (*RUN_FILES, CARD_FILE))
    for folder in ("eval", "start/eval"):
        remove_half_written(output_dir / folder)
