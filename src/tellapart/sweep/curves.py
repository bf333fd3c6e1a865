"""Grids as curves before anything is trained: the first key is the knob along a curve, the others give curves of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from tellapart.sweep.records import START, Curve, Measured, Point, Training
from tellapart.sweep.tasks import Setting, Sweep, Task
from tellapart.sweep.trainings import option


@dataclass
class Method:
    """A recipe with its grid.

    Args:
        path: the recipe.
        label: its name in tables.
        grid: option -> its values as text.
    """

    path: Path
    label: str | None = None
    grid: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class PlannedCurve:
    """A curve before its points are trained: ``points`` has the knob's values and a task per seed, ``start_of`` the start model
    of each training by the training's folder."""

    label: str
    method: str
    recipe: str
    knob: str | None
    points: list[tuple[dict[str, Any], list[Task]]] = field(default_factory=list)
    start_of: dict[Path, Task] = field(default_factory=dict)

    @property
    def start(self) -> list[Task]:
        """The start models, each once."""
        return list({task.folder: task for task in self.start_of.values()}.values())

    def everything(self) -> list[Task]:
        """All its tasks, the start first."""
        return [*self.start, *(task for _, tasks in self.points for task in tasks)]

    def measured(self) -> Curve:
        """The curve of what is done; the rest is reported with its last words."""
        begins = {task.folder: task.measured()[START] for task in self.start if task.done()}
        points = tuple(
            Point(
                settings,
                tuple(Training(task.seed, task.measured(), self._begin(task, begins)) for task in tasks if task.done()),
                {task.seed: task.job.last_words() for task in tasks if not task.done()},
            )
            for settings, tasks in self.points
        )
        return Curve(self.label, self.method, self.recipe, self.knob, points)

    def _begin(self, task: Task, begins: Mapping[Path, Measured]) -> Measured | None:
        """What the start model of a training scores, if that was measured."""
        start = self.start_of.get(task.folder)
        return None if start is None else begins.get(start.folder)


class Planner:
    """Turns recipes with grids into curves; every recipe is checked before anything trains.

    Args:
        sweep: where and with which options for all recipes.
        seeds: the recipe's own seed -> the seeds of every point.
        measure: how points are measured, in the options of ``tellapart score``.
    """

    def __init__(self, sweep: Sweep, seeds: Callable[[int], Sequence[int]], measure: Mapping[str, Any]) -> None:
        self.sweep, self.seeds, self.measure = sweep, seeds, measure

    def curves(self, methods: Sequence[Method]) -> list[PlannedCurve]:
        """One curve per recipe and combination of its further keys.

        Raises:
            UsageError: an option of a grid does not exist, or a value is of a wrong type.
        """
        labels = _labels(methods)
        return [curve for method, label in zip(methods, labels, strict=True) for curve in self._of(method, label)]

    def _of(self, method: Method, label: str) -> Iterator[PlannedCurve]:
        varied = [key for key, texts in method.grid.items() if len(texts) > 1]
        knob = varied[0] if varied else None
        others = [key for key in method.grid if key != knob]
        for combination in product(*(method.grid[key] for key in others)):
            fixed = dict(zip(others, combination, strict=True))
            told = [f"{key} {fixed[key]}" for key in others if key in varied]
            curve = PlannedCurve(", ".join([label, *told]), "", method.path.name, knob)
            for text in method.grid[knob] if knob else [None]:
                self._add_point(curve, method.path, fixed if text is None else {str(knob): text, **fixed})
            curve.points.sort(key=lambda point: _order(point[0], knob))
            yield curve

    def _add_point(self, curve: PlannedCurve, path: Path, settings: dict[str, str]) -> None:
        setting = Setting(str(path), settings)
        curve.method, resolved = self.sweep.load(setting)
        shown = {key: option(resolved, key) for key in ([curve.knob] if curve.knob else settings)}
        label = Point(shown, ()).label() if shown else ""
        tasks = []
        for seed in self.seeds(option(resolved, "training.seed")):
            name = ", ".join(filter(None, [curve.label, label, f"seed {seed}"]))
            tasks.append(self.sweep.training(setting, seed, name, [self.measure]))
            start = self.sweep.start(setting, seed, measures=[self.measure])
            if start is not None:
                curve.start_of[tasks[-1].folder] = start
        if all(tasks[0].folder != others[0].folder for _, others in curve.points):
            curve.points.append((shown, tasks))  # 0.1 and 1e-1 are one point


def _labels(methods: Sequence[Method]) -> list[str]:
    """A name for each, all different."""
    names = [method.label or method.path.stem for method in methods]
    return [name if names.count(name) == 1 else f"{name} ({names[:i].count(name) + 1})" for i, name in enumerate(names)]


def _order(settings: Mapping[str, Any], knob: str | None) -> tuple[int, float]:
    """Numbers by size, everything else as it was given."""
    value = settings.get(knob) if knob else None
    return (0, float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else (1, 0.0)
