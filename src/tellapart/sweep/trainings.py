"""What a sweep asks of recipes, in one place: load, key, train, measure, time.

Names of options are dotted, those of the loop below ``training``: ``training.learning_rate``, ``objective.beta``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from tellapart.errors import UsageError
from tellapart.files import write_text
from tellapart.recipe.fingerprint import Fingerprints, stages_of, world_stage
from tellapart.recipe.load import Recipe, load_recipe
from tellapart.recipe.read_yaml import read_yaml

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.evaluate import Evaluation
    from tellapart.evaluation.results import EvaluationResult

Resolved = dict[str, Any]
"""A recipe with every option, as it is written."""

TRAINING = "training."
OF_ONE_CALL = ("output_dir", "resume_from_checkpoint")
"""Options of one call, which are no part of a training."""

DECIDES_START = ("captioner", "data", "listener", "own_listener", "evaluation")
"""Sections that decide what a start model scores."""

BARE = ("world/backbone", "world/blip2-backbone")
"""Stages of the world that see, and do not caption yet."""

RECIPE_FILE = "asked.yaml"
WARM, TIMED = 2, 6
"""Steps that are left out, since they fill caches, and steps that are timed."""


def recipe_file(name: str | Path) -> Path:
    """The file of a recipe that is named by its path, or by its file's stem.

    Raises:
        UsageError: there is none.
    """
    if Path(name).suffix:
        return Path(name)
    package = Path(__file__).resolve().parents[1]
    folders = (Path("recipes"), package / "recipes", package.parents[1] / "recipes")
    found = next((path for folder in folders if (path := folder / f"{name}.yaml").is_file()), None)
    if found is None:
        raise UsageError(f"there is no recipe {name!r}: name a file of recipes/ without its ending, or a path.")
    return found


def load(name: str | Path, overrides: Mapping[str, Any] | None = None) -> tuple[str, Resolved]:
    """A recipe's method, and the recipe resolved.

    Args:
        name: a path, or the stem of a file in ``recipes/``.
        overrides: option -> value; ``training.learning_rate.captioner`` changes the captioner's rate of several.

    Raises:
        UsageError: there is no such recipe or option, or a value is of a wrong type.
    """
    given, parts = dict(overrides or {}), dict[str, Any]()
    for key in [key for key in given if key.startswith("training.learning_rate.")]:
        parts[key.removeprefix("training.learning_rate.")] = given.pop(key)
    if parts:
        rates = given.get("training.learning_rate", read_yaml(recipe_file(name)).get("learning_rate"))
        given["training.learning_rate"] = (rates if isinstance(rates, dict) else {"captioner": rates}) | parts
    recipe = _load(name, given)
    return recipe.method, {key: value for key, value in recipe.resolved.items() if key not in OF_ONE_CALL}


def _load(name: str | Path, overrides: Mapping[str, Any]) -> Recipe:
    words = [f"--{key.removeprefix(TRAINING)}={_text(value)}" for key, value in overrides.items()]
    return load_recipe([str(recipe_file(name)), *words])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def option(recipe: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted option.

    Raises:
        KeyError: the recipe has no such option.
    """
    found: Any = recipe
    for part in key.removeprefix(TRAINING).split("."):
        found = found[part]
    return found


def with_seed(recipe: Resolved, seed: int, *, redraw_start: bool) -> Resolved:
    """The recipe with another seed; on request with the start captioner of the built-in world that the seed redraws."""
    name = option(recipe, "captioner.model_name_or_path")
    seeded = recipe | {"seed": seed}
    if redraw_start and seed and _redrawn(name):
        seeded["captioner"] = recipe["captioner"] | {"model_name_or_path": f"{name}-seed{seed}"}
    return seeded


def _redrawn(name: str) -> bool:
    from tellapart.world.schedules import SEEDED

    return world_stage(name) is not None and name in SEEDED


def start_of(recipe: Resolved) -> Resolved | None:
    """What decides the scores of a recipe's start model; None for random weights, which are no start."""
    name = option(recipe, "captioner.model_name_or_path")
    if name.startswith("new/") or name in BARE:
        return None
    return {part: recipe[part] for part in DECIDES_START if part in recipe}


def train(recipe: Resolved, folder: Path) -> dict[str, int | None]:
    """Train, or resume what an interrupted process left; ``{"selected": step or None, "last": step}``.

    Raises:
        UsageError: the recipe cannot be carried out.
    """
    from tellapart.cli.train import check_output_dir, clear
    from tellapart.cli.train import train as train_recipe
    from tellapart.recipe.build import build

    write_text(folder / RECIPE_FILE, yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
    words = [str(folder / RECIPE_FILE), "--output_dir", str(folder)]
    if any(folder.glob("checkpoint-*")):
        words += ["--resume_from_checkpoint", "last"]
    else:
        clear(folder)  # left by a process that was killed before its first checkpoint
    asked = load_recipe(words)
    check_output_dir(asked)
    run = train_recipe(asked, build(asked))
    return {"selected": run.best.step if run.best else None, "last": run.step}


def seconds_per_step(recipe: Resolved) -> float:
    """Mean CPU seconds of a few training steps, in a folder that is thrown away."""
    from tellapart.recipe.build import build
    from tellapart.training.loop import train as loop

    clock = list[float]()

    def look(_: Any) -> dict[str, float]:
        clock.append(time.process_time())
        return {}

    with TemporaryDirectory() as folder:
        short = recipe | {"max_steps": WARM + TIMED, "eval_steps": 1, "metric_for_best_model": None, "best_floor": {}}
        asked = _from_text(short, Path(folder))
        built = build(asked)
        loop(built.objective, built.data, asked.training, evaluate=look)
    return (clock[-1] - clock[WARM]) / TIMED


def _from_text(recipe: Resolved, folder: Path) -> Recipe:
    write_text(folder / RECIPE_FILE, yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
    return load_recipe([str(folder / RECIPE_FILE), "--output_dir", str(folder)])


def measure(model: str, recipe: Resolved, options: Mapping[str, Any], *, name: str) -> EvaluationResult:
    """What a model scores, as ``tellapart score`` measures it.

    Args:
        model: a checkpoint, a run or the name of a model.
        recipe: what fills in the options that are null.
        options: of ``tellapart score``.
        name: of the result.
    """
    from tellapart.cli.score_captioner import measure as score
    from tellapart.cli.score_options import ScoreOptions
    from tellapart.recipe.runs import made_by

    return score(model, ScoreOptions(name=name, **options), run=made_by(recipe))


def evaluation_of(recipe: Resolved, *, split: str, meteor: bool = False) -> Evaluation:
    """The evaluation of a recipe on a split, for captions that nobody draws."""
    from tellapart.recipe.build import build

    changed = recipe | {"evaluation": recipe["evaluation"] | {"split": split, "meteor": meteor}}
    with TemporaryDirectory() as folder:
        watch = build(_from_text(changed, Path(folder))).watch
    assert watch is not None, "the evaluation has a split"
    return watch.evaluation


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
    from tellapart.world.schedules import STAGES

    for stage, size in sorted(needed):
        folder, known = build_stage(stage, size), world_stage(stage)
        if known is not None and STAGES[known[0]].demanded:
            require_probe(folder)


class Keys:
    """Hashes of what decides numbers, 12 hex digits each; models and data count by content, and each file is read once."""

    def __init__(self) -> None:
        self._fingerprints = Fingerprints()

    def of(self, recipe: Resolved, *further: object) -> str:
        """The key of a recipe, or of some of its sections with ``data`` among them."""
        return self._fingerprints.key(recipe, *further)
