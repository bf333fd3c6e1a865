"""What a sweep asks of recipes, in one place: load, key, train, measure, time.

Names of options are dotted, those of the loop below ``training``: ``training.learning_rate``, ``objective.beta``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tellapart.names import require_known
from tellapart.recipe.fingerprint import key_of, stages_of, world_stage
from tellapart.recipe.flags import full_name
from tellapart.recipe.options import Given, Text
from tellapart.recipe.recipe import Recipe
from tellapart.recipe.words import read_options

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.evaluate import Evaluation
    from tellapart.evaluation.results import EvaluationResult

Resolved = dict[str, Any]
"""A recipe with every option, as it is written."""

OF_ONE_CALL = ("output_dir", "resume_from_checkpoint")
"""Options of one call, which are not part of a training."""

DECIDES_START = ("captioner", "data", "listener", "own_listener", "evaluation")
"""Sections that decide what a start model scores."""

BARE = ("world/backbone", "world/blip2-backbone", "world/video-backbone")
"""Stages of the world that see, and do not caption yet."""

WARM, TIMED = 2, 6
"""Steps that are left out, since they fill caches, and steps that are timed."""


def load(name: str | Path, overrides: Mapping[str, Any] | None = None) -> tuple[str, Resolved]:
    """A recipe's method, and the recipe resolved.

    Args:
        name: a path, or the name of a shipped recipe.
        overrides: option -> value, or its text; ``training.learning_rate.captioner`` changes the captioner's rate of several.

    Raises:
        UsageError: a recipe or option is unknown, a value has a wrong type, or sections contradict each other.
    """
    from tellapart.recipe.build import check_together

    given = {key: Text(value) if isinstance(value, str) else value for key, value in (overrides or {}).items()}
    recipe = Recipe.load(name, given)
    check_together(recipe)
    training = {key: value for key, value in recipe.resolved["training"].items() if key not in OF_ONE_CALL}
    return recipe.method, recipe.resolved | {"training": training}


def option(recipe: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted option, or the weight of a reward.

    Raises:
        KeyError: the recipe has no such option.
    """
    found: Any = recipe
    for part in full_name(key).split("."):
        if isinstance(found, list):
            found = next((entry for entry in found if entry["name"] == part), {})
            continue
        found = found[part]
    return found.get("weight", 0.0) if key.startswith("reward.") and isinstance(found, Mapping) else found


def with_seed(recipe: Resolved, seed: int, *, redraw_start: bool) -> Resolved:
    """The recipe with another seed; on request with the start captioner of the built-in world that the seed redraws."""
    name = option(recipe, "captioner.model_name_or_path")
    seeded = recipe | {"training": recipe["training"] | {"seed": seed}}
    if redraw_start and seed and _redrawn(name):
        seeded["captioner"] = recipe["captioner"] | {"model_name_or_path": f"{name}-seed{seed}"}
    return seeded


def _redrawn(name: str) -> bool:
    from tellapart.world.schedules import SEEDED

    return world_stage(name) is not None and name in SEEDED


def has_start(recipe: Resolved) -> bool:
    """Whether there is a start model to measure: random weights are none."""
    name = option(recipe, "captioner.model_name_or_path")
    return not (name.startswith("new/") or name in BARE)


def train(recipe: Resolved, folder: Path) -> dict[str, int | None]:
    """Train, or resume what an interrupted process left; ``{"selected": step or None, "last": step}``.

    Raises:
        UsageError: the recipe cannot be carried out.
    """
    run = Recipe.load(recipe).train(folder, resume=True, controls=True)
    return {"selected": run.best.step if run.best else None, "last": run.step}


def seconds_per_step(recipe: Resolved) -> float:
    """Mean CPU seconds of a few training steps, in a folder that is thrown away."""
    from tellapart.training.loop import train as loop

    clock = list[float]()

    def look(_: Any) -> dict[str, float]:
        clock.append(time.process_time())
        return {}

    with TemporaryDirectory() as folder:
        short: dict[str, Any] = {
            "max_steps": WARM + TIMED,
            "eval_steps": 1,
            "metric_for_best_model": None,
            "greater_is_better": True,
            "best_floor": {},
            "on_hack": "warn",
        }
        asked = Recipe.load(recipe, {**short, "output_dir": folder})
        built = asked.build()
        loop(built.objective, built.data, asked.training, evaluate=look)
    return (clock[-1] - clock[WARM]) / TIMED


def check_measure(options: Mapping[str, Any]) -> None:
    """Raise where a measurement could not be asked for.

    Args:
        options: of ``tellapart score``.

    Raises:
        UsageError: an option is unknown, its value is wrong, or it names a stage that the built-in world has not.
    """
    from tellapart.recipe.score_options import ScoreOptions

    for key in options:
        require_known(key, [each.name for each in fields(ScoreOptions)], "an option of tellapart score")
    given = {key: Given(value, f"{key} in measure") for key, value in options.items()}
    ScoreOptions(**vars(read_options(given, ScoreOptions))).check()
    for stage in stages_of(options):
        world_stage(stage)


def check_split(recipe: Resolved, split: str | None) -> None:
    """Raise where the built-in world has no such split; other data tell when they are read, and none is that of the recipe.

    Raises:
        UsageError: with the closest split.
    """
    from tellapart.recipe.models import VIDEO_WORLD, WORLD
    from tellapart.world import WORLD_SPLITS
    from tellapart.world.video import VIDEO_SPLITS

    data = option(recipe, "data.path")
    if split and data in (WORLD, VIDEO_WORLD):
        require_known(split, WORLD_SPLITS if data == WORLD else VIDEO_SPLITS, f"a split of {data}")


def measure(model: str, recipe: Resolved, options: Mapping[str, Any], *, name: str) -> EvaluationResult:
    """What a model scores, as ``tellapart score`` measures it.

    Args:
        model: a checkpoint, a run or the name of a model.
        recipe: what fills in the options that are null.
        options: of ``tellapart score``.
        name: of the result.
    """
    from tellapart.recipe.runs import made_by
    from tellapart.recipe.score import measure as score
    from tellapart.recipe.score_options import ScoreOptions

    return score(model, ScoreOptions(name=name, **options), run=made_by(recipe))


def evaluation_of(recipe: Resolved, *, split: str, meteor: bool = False) -> Evaluation:
    """The evaluation of a recipe on a split, for captions that are not sampled; with ``meteor`` also by METEOR."""
    further = {"evaluation.meteor": True} if meteor else {}
    evaluation = Recipe.load(recipe, {"evaluation.split": split, **further}).build().evaluate
    assert evaluation is not None, "the evaluation has a split"
    return evaluation


def dataset_of(recipe: Resolved, split: str) -> CaptionDataset:
    """The images of a split of a recipe's data."""
    from tellapart.recipe.measured import DataOptions
    from tellapart.recipe.measured import load as load_data
    from tellapart.recipe.runs import made_by

    return load_data(DataOptions(split=split), made_by(recipe)).dataset


def build_stages(named: Iterable[tuple[Resolved, Any]]) -> None:
    """Build the stages of the built-in world that trainings and measurements name, before two processes build the same.

    Args:
        named: recipes, each with its measurements.

    Raises:
        UsageError: a listener fails its probe, so that no reward by it means anything.
    """
    needed = {
        (stage, option(recipe, "data.size"))
        for recipe, measures in named
        for stage in stages_of({"recipe": recipe, "measures": measures})
    }
    if not needed:
        return
    from tellapart.recipe.models import build_stage
    from tellapart.world.probe import require_probe
    from tellapart.world.schedules import ALIASES, STAGES

    for stage, size in sorted(needed):
        folder, known = build_stage(stage, size), world_stage(stage)
        use = "" if known is None else STAGES[ALIASES.get(known[0], known[0])].use
        if use not in ("", "judge"):
            require_probe(folder, use)


def resolved_key(recipe: Resolved, *further: object, sections: Sequence[str] = ()) -> str:
    """The key of a recipe, or of some of its sections, with whatever else decides; 12 hex digits."""
    return key_of(_read_again(json.dumps(recipe)), *further, sections=sections)


@lru_cache(maxsize=1)
def _read_again(resolved: str) -> Recipe:
    """A recipe from JSON; the keys of a training and of its measurements are asked for one after another."""
    return Recipe.load(json.loads(resolved))
