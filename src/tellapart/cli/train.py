"""``tellapart train``: run a recipe."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.cli.console import note, result_console, say
from tellapart.cli.push import check_push, push_trained, write_or_keep_card
from tellapart.errors import UsageError
from tellapart.files import write_text
from tellapart.recipe.load import PART_SECTIONS, Recipe, load_recipe, recipe_help

if TYPE_CHECKING:
    from tellapart.recipe.build import Built, Watch
    from tellapart.recipe.listener_recipe import ListenerRecipe
    from tellapart.training.run import Run

RECIPE_FILE = "recipe.yaml"
SKIPPED_FILE = "skipped_images.txt"

RUN_FILES = (
    "run.json",
    "metrics.jsonl",
    "trainer_state.json",
    "nonfinite.json",
    RECIPE_FILE,
    SKIPPED_FILE,
    "report.html",
)
RUN_FOLDERS = ("checkpoint-*", "best", "eval", "start", "samples", "runs")
"""What a run writes into its folder, and all that ``--overwrite_output_dir`` removes."""

_MEASURED = ("captioner", "own_listener")
"""Parts that an evaluation reads."""

WHAT_MAKES_A_RUN = (
    "method",
    "captioner",
    "data",
    "listener",
    "language_model",
    "matcher",
    "reward",
    *PART_SECTIONS,
    "objective",
    "loss",
    "head",
    "hinge",
    "pac",
)
"""Parts of a recipe, of a captioner or a listener, that must stay the same for a run to be continued."""

DECIDES_NOTHING = {"matcher": ("device", "batch_size")}
"""Part of a recipe -> its options that change no number, so that a run can be continued elsewhere."""


def run(argv: Sequence[str]) -> int:
    """Train as a recipe and flags say."""
    if "--help" in argv or "-h" in argv:
        say(recipe_help(argv))
        return 0
    recipe = load_recipe(argv)
    if recipe.flags.print_config:
        say(recipe.to_yaml().rstrip())
        return 0
    check_output_dir(recipe)
    check_push(recipe.flags)
    from tellapart.cli import memory

    if recipe.flags.dry_run and memory.lacks_weights(recipe.captioner.model_name_or_path):
        say(memory.memory_of_configurations(recipe))
        note("note: the captioner has no weights, so nothing else was checked.")
        return 0
    from tellapart.recipe.build import build

    built = build(recipe)
    if recipe.flags.dry_run:
        say(recipe.to_yaml().rstrip())
        note(memory.memory_table(recipe, built))
        note(_summary(built))
        return 0
    done = train(recipe, built)
    if recipe.flags.push_to_hub and is_main():
        push_trained(done.output_dir, recipe.flags)
    return 0


def train(recipe: Recipe, built: Built) -> Run:
    """Train, then measure the selected captioner and keep the result with the run."""
    from tellapart.captioners.modes import quiet
    from tellapart.recipe.images import keep_list, tell_replaced
    from tellapart.training.loop import train as loop

    output_dir = recipe.training.output_dir
    if recipe.flags.overwrite_output_dir:
        clear(output_dir)
    fresh = not recipe.training.resume_from_checkpoint
    if is_main():
        keep_list(built.data, built.skipped, output_dir / SKIPPED_FILE, resumes=not fresh)
    watch = _keeping_first(built.watch, output_dir) if built.watch is not None and fresh else built.watch
    try:
        with quiet():
            done = loop(built.objective, built.data, recipe.training, evaluate=watch, recipe=recipe.resolved)
    finally:
        if is_main() and (output_dir / "run.json").is_file():
            write_text(output_dir / RECIPE_FILE, recipe.to_yaml())
            tell_replaced(built.data, output_dir / SKIPPED_FILE)
    if is_main():
        _conclude(built, done)
        references = built.watch.evaluation.dataset.references if built.watch is not None else None
        write_or_keep_card(output_dir, references=references)
    return done


def _keeping_first(watch: Watch, output_dir: Path) -> Callable[[Any], dict[str, float]]:
    """The evaluation, which keeps the first result, that of the start model, for the report and the model card."""
    from tellapart.evaluation.report.runs import START_FOLDER, START_NAME

    kept: list[Path] = []

    def evaluate(objective: Any) -> dict[str, float]:
        metrics = watch(objective)
        if not kept and watch.last is not None:
            kept.append(replace(watch.last, name=START_NAME).save(output_dir / START_FOLDER))
        return metrics

    return evaluate


def _conclude(built: Built, done: Run) -> None:
    """Say where the run is and what its selected captioner scored."""
    where = done.checkpoint if done.best is None else done.output_dir / "best"
    selected = "" if done.best is None else f" (of step {done.best.step}, by {done.best.metric})"
    note(f"trained {done.step} steps: {where}{selected}")
    watch = built.watch
    if watch is None:
        return
    from tellapart.evaluation.compare import compare_results

    result = watch.last
    if result is None or (done.best is not None and done.best.step != done.step):
        for name, part in built.objective.named_children():
            if name in _MEASURED:
                part.load_weights(where / name)
        result = watch.measure(built.captioner)
    result.save(done.output_dir)
    compare_results([result]).print(result_console())


def check_output_dir(recipe: Recipe | ListenerRecipe) -> None:
    """Raise where training would lose a run, or go on from another one.

    Raises:
        UsageError: the folder holds a run that is neither resumed nor overwritten, or the run to resume is another.
    """
    output_dir, resumes = recipe.training.output_dir, recipe.training.resume_from_checkpoint
    if output_dir.exists() and not output_dir.is_dir():
        raise UsageError(f"--output_dir {output_dir} is a file: name a folder.")
    if recipe.flags.overwrite_output_dir:
        if resumes:
            raise UsageError("--overwrite_output_dir and --resume_from_checkpoint exclude each other: give one.")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(f"--overwrite_output_dir needs a single process: remove {output_dir} yourself.")
        return
    before = _recorded(output_dir)
    if before is None:
        return
    if not resumes:
        raise UsageError(
            f"--output_dir {output_dir} already holds a run: name another folder, continue it with "
            "--resume_from_checkpoint last, or delete it with --overwrite_output_dir."
        )
    recorded = _completed(before, recipe.usual)
    for key in WHAT_MAKES_A_RUN:
        was, asked = _deciding(recorded, key), _deciding(recipe.resolved, key)
        if before and was != asked:
            raise UsageError(
                f"the run in {output_dir} has {key} {was!r}, not {asked!r}: resume it with its own recipe, or name another "
                "--output_dir."
            )


def _deciding(recipe: Any, key: str) -> Any:
    """A part of a recipe without the options that change no number."""
    part = recipe.get(key)
    if key not in DECIDES_NOTHING or not isinstance(part, dict):
        return part
    return {name: value for name, value in part.items() if name not in DECIDES_NOTHING[key]}


def _completed(recorded: Any, usual: Any) -> Any:
    """What was recorded, with the options that it lacks: those came later, and their defaults were what happened then."""
    if not isinstance(usual, dict) or not isinstance(recorded, dict):
        return recorded
    return usual | {key: _completed(value, usual.get(key)) for key, value in recorded.items()}


def _recorded(output_dir: Path) -> dict[str, Any] | None:
    """The recipe of the run in a folder, empty if it cannot be told; None if there is no run."""
    if not any((output_dir / name).exists() for name in ("run.json", "metrics.jsonl")):
        return {} if any(output_dir.glob("checkpoint-*")) else None
    try:
        return json.loads((output_dir / "run.json").read_text(encoding="utf-8"))["recipe"] or {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def clear(output_dir: Path) -> None:
    """Remove what a run has written; anything else in the folder stays, also a model card in somebody's own words."""
    from tellapart.evaluation.card import CARD_FILE, is_ours

    if is_ours(output_dir / CARD_FILE):
        (output_dir / CARD_FILE).unlink()
    for name in RUN_FILES:
        (output_dir / name).unlink(missing_ok=True)
    for pattern in RUN_FOLDERS:
        for folder in output_dir.glob(pattern):
            shutil.rmtree(folder)


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return os.environ.get("RANK", "0") == "0"


def _summary(built: Built) -> str:
    """What was built, in a line."""
    trained = sum(p.numel() for p in built.objective.parameters() if p.requires_grad)
    evaluated = "no evaluation" if built.watch is None else f"evaluation: {built.watch.evaluation.protocol.line()}"
    return f"{len(built.dataset)} training images ({built.dataset.name}), {trained:,} trained weights; {evaluated}"
