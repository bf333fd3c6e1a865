"""The trainings of a frontier: every point of every grid with every seed, each in a folder named by what decides it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from tellapart.cli.frontier_words import FrontierOptions, Method, Words, nested, seeds_of
from tellapart.experiments.frontier.records import START, Curve, Measured, Point, Training
from tellapart.experiments.jobs import Job
from tellapart.files import write_json
from tellapart.recipe.fingerprint import Fingerprints, world_stage
from tellapart.recipe.recipe import Recipe, load_recipe

POINT_MODULE = "tellapart.cli.frontier_point"
ASKED_FILE, DONE_FILE = "asked.json", "done.json"
DECIDES_START = ("captioner", "data", "listener", "own_listener", "evaluation")
"""Sections that decide what a start model scores."""


@dataclass(frozen=True)
class Planned:
    """A training with its measurement, or the measurement of a start model.

    Args:
        job: the process that does it.
        seed: of the training.
        recipe: resolved.
        asked: what the process is told.
    """

    job: Job
    seed: int
    recipe: dict[str, Any]
    asked: dict[str, Any]

    def write(self) -> None:
        """Put down what the process is to do."""
        write_json(self.job.folder / self.job.arguments[0], self.asked)

    def training(self) -> Training:
        """What it measured.

        Raises:
            UsageError: the files are damaged.
        """
        done = self.job.folder / self.job.marker
        told = json.loads(done.read_text(encoding="utf-8"))
        checkpoints = {name: Measured.read(done.parent / m["folder"], m["step"]) for name, m in told.items()}
        return Training(self.seed, checkpoints)


@dataclass
class PlannedCurve:
    """A curve before its points are trained: ``points`` has the knob's values and a training a seed."""

    label: str
    method: str
    recipe: str
    knob: str | None
    points: list[tuple[dict[str, Any], list[Planned]]] = field(default_factory=list)
    start: list[Planned] = field(default_factory=list)

    def everything(self) -> list[Planned]:
        """All that is to be done for it, the start first."""
        return [*self.start, *(planned for _, each in self.points for planned in each)]

    def measured(self) -> Curve:
        """The curve of what is done; what is not is told with its last words."""
        points = tuple(
            Point(
                settings,
                tuple(planned.training() for planned in each if planned.job.done()),
                {planned.seed: planned.job.last_words() for planned in each if not planned.job.done()},
            )
            for settings, each in self.points
        )
        start = tuple(planned.training() for planned in self.start if planned.job.done())
        return Curve(self.label, self.method, self.recipe, self.knob, points, start)


class Planner:
    """Turns recipes with grids into curves; every recipe is checked before anything trains."""

    def __init__(self, words: Words) -> None:
        self.words, self.options, self.fingerprints = words, words.options, Fingerprints()
        self._overrides = [f"--{key}={value}" for key, value in words.overrides.items()]

    def curves(self) -> list[PlannedCurve]:
        """One curve a recipe and combination of its further keys.

        Raises:
            UsageError: an option of a grid does not exist, or a value is of a wrong type.
        """
        labels = _labels(self.words.methods)
        return [
            curve for method, label in zip(self.words.methods, labels, strict=True) for curve in self._of(method, label)
        ]

    def _of(self, method: Method, label: str) -> Iterator[PlannedCurve]:
        varied = [key for key, texts in method.grid.items() if len(texts) > 1]
        knob, others = (
            (varied[0], [key for key in method.grid if key != varied[0]]) if varied else (None, [*method.grid])
        )
        for combination in product(*(method.grid[key] for key in others)):
            fixed = dict(zip(others, combination, strict=True))
            told = [f"{key} {fixed[key]}" for key in others if key in varied]
            curve = PlannedCurve(", ".join([label, *told]), "", method.path.name, knob)
            for text in method.grid[knob] if knob else [None]:
                settings = fixed if text is None else {str(knob): text, **fixed}
                self._add_point(curve, method.path, settings)
            curve.points.sort(key=lambda point: _order(point[0], knob))
            yield curve

    def _add_point(self, curve: PlannedCurve, path: Path, settings: dict[str, str]) -> None:
        words = [str(path), *self._overrides, *(f"--{key}={text}" for key, text in settings.items())]
        recipe = load_recipe([*words, f"--output_dir={self.options.output_dir}"])
        curve.method = recipe.method
        shown = {key: nested(recipe.resolved, key) for key in ([curve.knob] if curve.knob else settings)}
        each = []
        for seed in seeds_of(self.options.seeds, recipe.training.seed):
            resolved = self._seeded(recipe, seed)
            each.append(self._training(recipe, resolved, curve, Point(shown, ()).label() if shown else ""))
            self._add_start(curve, resolved)
        if all(each[0].job.folder != others[0].job.folder for _, others in curve.points):
            curve.points.append((shown, each))  # 0.1 and 1e-1 are one point

    def _seeded(self, recipe: Recipe, seed: int) -> dict[str, Any]:
        """The resolved recipe with another seed, without what is of one invocation."""
        resolved = {key: value for key, value in recipe.resolved.items() if key not in _OF_ONE} | {"seed": seed}
        name = recipe.captioner.model_name_or_path
        if self.options.redraw_start and seed and _redrawn(name):
            resolved["captioner"] = resolved["captioner"] | {"model_name_or_path": f"{name}-seed{seed}"}
        return resolved

    def _training(self, recipe: Recipe, resolved: dict[str, Any], curve: PlannedCurve, setting: str) -> Planned:
        folder = self._folder(recipe.method, self.fingerprints.key(resolved))
        name = ", ".join(filter(None, [curve.label, setting, f"seed {resolved['seed']}"]))
        return self._planned(folder, name, recipe.training.max_steps or 1, resolved, trains=True)

    def _add_start(self, curve: PlannedCurve, resolved: dict[str, Any]) -> None:
        """The start model once a curve, or once a seed where the seed redraws it; random weights are no start."""
        name = resolved["captioner"]["model_name_or_path"]
        if name.startswith(("new/", "world/backbone")):
            return
        key = self.fingerprints.key({part: resolved[part] for part in DECIDES_START if part in resolved})
        folder = self._folder(START, key)
        if all(planned.job.folder != folder for planned in curve.start):
            curve.start.append(self._planned(folder, f"start model {name}", 0, resolved, trains=False))

    def _planned(self, folder: Path, name: str, steps: int, recipe: dict[str, Any], *, trains: bool) -> Planned:
        how = measuring(self.options, recipe)
        key = self.fingerprints.key({"data": recipe["data"], "measure": how})
        place = f"measured/{re.sub('[^a-z0-9]+', '-', how['split'].lower())}-{key}"
        asked = {"name": name, "trains": trains, "recipe": recipe, "measure": how}
        job = Job(name, POINT_MODULE, (f"{place}/{ASKED_FILE}",), folder, steps, f"{place}/{DONE_FILE}")
        return Planned(job, recipe["seed"], recipe, asked)

    def _folder(self, name: str, key: str) -> Path:
        return self.options.output_dir / "points" / f"{name}-{key}"


_OF_ONE = ("output_dir", "resume_from_checkpoint")
"""What belongs to one invocation and is no part of a point."""


def measuring(options: FrontierOptions, recipe: dict[str, Any]) -> dict[str, Any]:
    """How a point is measured, in the words of ``tellapart score``; what is null comes from the recipe."""
    return {
        "split": options.split or recipe["evaluation"]["split"] or "val",
        "num_beams": options.num_beams,
        "samples": options.samples,
        "meteor": options.meteor,
        "language_model": options.language_model,
        "grammar": options.grammar,
    }


def _labels(methods: Sequence[Method]) -> list[str]:
    """A name for each, all different."""
    names = [method.label or method.path.stem for method in methods]
    return [name if names.count(name) == 1 else f"{name} ({names[:i].count(name) + 1})" for i, name in enumerate(names)]


def _redrawn(name: str) -> bool:
    from tellapart.world.schedules import SEEDED

    return world_stage(name) is not None and name in SEEDED


def _order(settings: dict[str, Any], knob: str | None) -> tuple[int, float]:
    """Numbers by size, everything else as it was given."""
    value = settings.get(knob) if knob else None
    return (0, float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else (1, 0.0)
