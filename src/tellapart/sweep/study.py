"""A study: a grid searched on val, the chosen points trained with every seed, and test measured once."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.errors import UsageError
from tellapart.evaluation.bootstrap import paired_bootstrap
from tellapart.evaluation.columns import require_metric
from tellapart.metrics.curves import interpolate
from tellapart.names import require_known
from tellapart.sweep.claims import Seeds, scale_of
from tellapart.sweep.jobs import require
from tellapart.sweep.notes import NOTES, Notes
from tellapart.sweep.records import START, Curve, Measured, Point, Training
from tellapart.sweep.study_file import Row, StudyFile
from tellapart.sweep.tasks import Setting, Sweep, Task, distinct
from tellapart.sweep.trainings import check_measure, check_split, option, resolved_key
from tellapart.world.schedules import ALIASES, STAGES

Derive = Callable[[Mapping[str, str]], Mapping[str, float]]
"""Further metrics of captions: image id -> caption to name -> value."""

DECIDES_NOTES = ("data", "listener", "own_listener", "evaluation")
"""Sections that decide what models of the world, and given captions, score."""

CAPTIONER = "captioner.model_name_or_path"

_PROBED = [stage.removeprefix("world/") for stage in (*STAGES, *ALIASES)]

METRIC = "listener_R@1"
"""What chooses among points of a recipe that selects no checkpoint."""


class Study:
    """The trainings of a study file, and what they measured.

    Args:
        file: what is compared.
        root: folder of all trainings; those that another study left there are used again.
        common: option -> value, for all recipes.
        derive: further metrics, of saved captions.
        kept: folder of an unpacked archive, from ``kept.restore``.
        build: builds what the rows need besides models of the world, such as features, before a note is measured.
    """

    def __init__(
        self,
        file: StudyFile,
        root: Path,
        *,
        common: Mapping[str, Any] | None = None,
        derive: Derive | None = None,
        kept: Path | None = None,
        build: Callable[[], object] = lambda: None,
    ) -> None:
        self.file, self.derive = file, derive
        self.sweep = Sweep(root, common={"training.logging_steps": 1, **(common or {})}, kept=kept)
        self._read: dict[Path, dict[str, float]] = {}
        self._tasks: dict[str, Task] = {}
        self.notes = Notes((kept or root) / NOTES, root / NOTES)
        self.build = build

    def check(self) -> None:
        """Read every row with each value of its options, so that a mistake shows before anything trains.

        Raises:
            UsageError: a recipe, option, metric, split or probed model is unknown, or a value has a wrong type.
        """
        self._check_page()
        for name, row in self.file.rows.items():
            taken = self.file.rows[row.point_of].grid if row.point_of else {}
            asked = {key: values for key, values in {**taken, **row.grid, **row.curve}.items() if values}
            first = {key: values[0] for key, values in asked.items()}
            _, recipe = self.sweep.load(row.setting.having(first))
            if len(self.grid(name)) > 1:
                _require_choice(name, recipe)
            for key, values in asked.items():
                for value in values[1:]:
                    self.sweep.load(row.setting.having({**first, key: value}))
            for how in self.file.measures_of(name):
                check_measure(how)
                check_split(recipe, how["split"])

    def _check_page(self) -> None:
        """Raise where the page is to show a model or a metric that does not exist."""
        for stage in self.file.probed:
            require_known(stage, _PROBED, "a model of the built-in world to be probed")
        if self.derive is None:
            for metric in (*(key for columns in self.file.tables.values() for key in columns), *self.file.sets):
                require_metric(metric)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the measured points."""
        return self.file.seeds

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """Seeds of the points that are tried on val."""
        return self.file.search_seeds or self.seeds[:1]

    def grid(self, name: str) -> list[Setting]:
        """Every point that a row is tried at on val; none for a row that takes another's."""
        row = self.file.rows[name]
        if row.point_of:
            return []
        return [row.setting.having(dict(zip(row.grid, values, strict=True))) for values in product(*row.grid.values())]

    def chosen(self, name: str) -> Setting:
        """The best point of a row on val by the metric that selects its checkpoints, on the mean over the seeds that search; of
        equal ones that of the lower rate."""
        row = self.file.rows[name]
        if row.point_of:
            best = self.chosen(row.point_of)
            taken = self.file.rows[row.point_of].grid
            return row.setting.having({key: best.overrides[key] for key in taken})
        points = self.grid(name)
        return points[0] if len(points) == 1 else max(points, key=lambda point: self.merit(name, point))

    def merit(self, name: str, setting: Setting) -> tuple[float, ...]:
        """What the chosen point has most of. A training whose metric is missing or not finite counts as the worst.

        Args:
            name: of the row.
            setting: one of its points.
        """
        tasks = self.tried(name, setting)
        recipe = tasks[0].recipe
        metric = (option(recipe, "training.metric_for_best_model") or METRIC).removeprefix("eval_")
        sign = 1.0 if option(recipe, "training.greater_is_better") else -1.0
        values = [task.on_val().get(metric) for task in tasks]
        finite = [sign * value for value in values if value is not None and math.isfinite(value)]
        return statistics.fmean(finite) if len(finite) == len(values) else -math.inf, -_rate(tasks[0])

    @property
    def rule(self) -> str:
        """What points are chosen by, as the page says it."""
        rule = "the metric that selects a training's\ncheckpoints"
        return f"the mean of {rule}" if len(self.search_seeds) > 1 else rule

    def tried(self, name: str, setting: Setting) -> list[Task]:
        """The trainings of a grid's point, one per seed that searches."""
        return [self.task(name, setting, seed) for seed in self.search_seeds]

    def task(self, name: str, setting: Setting, seed: int, measures: Sequence[Mapping[str, Any]] = ()) -> Task:
        """A training or, of a row that is a start captioner, its measurement.

        It is made once, since its key and its log take most of the time that a page takes; but of a row that begins with another
        one's captioner each time, since its key changes with that captioner's weights.

        Raises:
            FileNotFoundError: the row begins with the captioner of another one, which is not trained yet.
        """
        if self.file.rows[name].captioner_of:
            return self._task(name, setting, seed, measures)
        known = json.dumps(
            [name, setting.recipe, dict(setting.overrides), seed, *measures], sort_keys=True, default=str
        )
        if known not in self._tasks:
            self._tasks[known] = self._task(name, setting, seed, measures)
        return self._tasks[known]

    def _task(self, name: str, setting: Setting, seed: int, measures: Sequence[Mapping[str, Any]]) -> Task:
        shown = f"{name} ({points_text(self.file.rows[name], setting)}seed {seed})"
        if source := self.file.rows[name].captioner_of:
            trained = self.task(source, self.chosen(source), seed)
            setting = setting.having({CAPTIONER: str(trained.captioner())})
        if not self.file.rows[name].start_of:
            return self.sweep.training(setting, seed, shown, measures)
        start = self.sweep.start(setting, seed, shown, measures or [{"split": None}])
        assert start is not None, "a study's start captioner has weights"
        return start

    def curve(self, name: str) -> dict[Any, str]:
        """Value of a row's curve -> the name of its measured row; of a row without a curve its own."""
        curve = self.file.rows[name].curve
        values = next(iter(curve.values())) if curve else [None]
        return {value: name if value is None else f"{name} ({value_text(value)})" for value in values}

    def decided(self, name: str) -> bool:
        """Whether a row's point is known: it has only one, or the trainings that it is chosen among are done."""
        source = self.file.rows[name].point_of or name
        points = self.grid(source)
        return len(points) == 1 or all(task.done() for point in points for task in self.tried(source, point))

    def points(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, str, Setting]]:
        """Name of a measured row, the row of the file it is of, and its setting; of all rows, or of some."""
        for name in self.file.rows if names is None else names:
            row = self.file.rows[name]
            if row.test:
                chosen = self.chosen(name)
                for value, shown in self.curve(name).items():
                    yield shown, name, chosen.having({next(iter(row.curve)): value}) if row.curve else chosen

    @cached_property
    def measured(self) -> dict[str, list[Task]]:
        """Name of a measured row -> a task per seed, once the captioners that rows begin with are trained."""
        return {shown: self.seeded(name, setting) for shown, name, setting in self.points()}

    def plain(self) -> list[Task]:
        """The tasks of the measured rows whose points are known, but of those that begin with the captioner of another one."""
        names = [name for name, row in self.file.rows.items() if not row.captioner_of and self.decided(name)]
        found = (self.seeded(name, at) for _, name, at in self.points(names))
        return [task for tasks in found for task in tasks]

    def seeded(self, name: str, setting: Setting) -> list[Task]:
        """A task per seed of a row's measured point, with the row's measurements."""
        seeds = self.file.rows[name].seeds or self.seeds
        return [self.task(name, setting, seed, self.file.measures_of(name)) for seed in seeds]

    def searching(self) -> list[Task]:
        """The trainings that a choice is made among, and those that are tried on val only."""
        return [
            task
            for name, row in self.file.rows.items()
            for point in self.grid(name)
            if row.grid or not row.test
            for task in self.tried(name, point)
        ]

    def trained(self) -> list[Task]:
        """Every training of the study, once."""
        every = [*self.searching(), *(task for tasks in self.measured.values() for task in tasks)]
        return [task for task in distinct(every) if task.trains]

    def timings(self) -> list[Task]:
        """The timing of each measured row, by its first seed."""
        return [replace(tasks[0], times=True, steps=0) for tasks in self.measured.values() if tasks[0].trains]

    def run(self, *, workers: int = 2) -> None:
        """Search, choose, train and measure every seed; then time steps with nothing else running.

        Raises:
            UsageError: a training failed, or a listener fails its probe; finished trainings are kept.
        """
        require(self.sweep.run(self.searching(), "searching on val", workers=workers))
        plain, sources = self.plain(), self._sources()
        require(self.sweep.run(plain, "seeds on test", workers=workers))
        for task in sources:
            task.note_captioner()
        self.__dict__.pop("measured", None)  # what begins with a source may have got another key
        every = [task for tasks in self.measured.values() for task in tasks]
        if any(not task.done() for task in every):
            require(self.sweep.run(every, "seeds of what begins with a row's captioner", workers=workers))
        if self.file.times:
            require(self.sweep.run(self.timings(), "timing a step", workers=1))

    def _sources(self) -> list[Task]:
        """The trainings that rows begin with. One without weights is trained again if such a row is not done."""
        rows, sources, lacking = self.file.rows, list[Task](), list[Task]()
        for _, name, setting in self.points():
            if source := rows[name].captioner_of:
                at = self.chosen(source)
                for seed in rows[name].seeds or self.seeds:
                    sources.append(self.task(source, at, seed, self.file.measures_of(source)))
                    if not sources[-1].done() or not self.task(name, setting, seed, self.file.measures_of(name)).done():
                        lacking.append(sources[-1])
        for task in lacking:  # now that all points are chosen, which reads what was trained
            task.require_weights()
        return sources

    def shown(self) -> dict[str, list[Task]]:
        """The measured rows that tables show."""
        hidden = {shown for name, row in self.file.rows.items() if not row.shown for shown in self.curve(name).values()}
        return {name: tasks for name, tasks in self.measured.items() if name not in hidden}

    def metrics(self, name: str, point: str = "selected", decoding: str = "greedy") -> list[dict[str, float]]:
        """What was measured on test, a mapping per seed; empty where a row has no such point.

        Args:
            name: of a measured row.
            point: ``selected`` or ``last``. A start captioner has only ``selected``; where no metric selects, both are the last
                step.
            decoding: ``greedy``, or ``beam 5`` and the like.
        """
        found = [self.evaluation(task, point, decoding) for task in self.measured[name]]
        return [self._metrics(one) for one in found if one is not None]

    def evaluation(self, task: Task, point: str, decoding: str = "greedy") -> Measured | None:
        """The evaluation of a checkpoint on test, or None where there is none."""
        return self.checkpoints(task, decoding).get(point)

    def checkpoints(self, task: Task, decoding: str | None = None) -> dict[str, Measured]:
        """Checkpoint -> its evaluation on test. Where a recipe selects none, ``selected`` is the last step, and
        of a start captioner its only measurement.

        Args:
            task: measured.
            decoding: of the captions; None takes the study's first. A row with a measure of its own has no other.
        """
        place = 0 if decoding is None else self.file.decodings.index(decoding)
        if place >= len(task.measures):
            return {}
        found = task.measured(place)
        stands_in = next(name for name in ("selected", START, "last") if name in found)
        return {"selected": found[stands_in], **found}

    def _metrics(self, measured: Measured) -> dict[str, float]:
        if measured.folder not in self._read:
            further = self.derive(measured.result().captions) if self.derive else {}
            self._read[measured.folder] = {**measured.metrics, **further}
        return self._read[measured.folder]

    def read(
        self, name: str, key: str, *, point: str = "selected", decoding: str = "greedy", factor: float | None = None
    ) -> Seeds:
        """A metric over seeds, as tables print it (CIDEr 120 is 1.2).

        Args:
            name: of a measured row.
            key: the metric.
            point: ``selected`` or ``last``.
            decoding: of the captions.
            factor: what it is multiplied by; None takes the metric's own scale.
        """
        scale = scale_of(key, factor)
        return Seeds([scale * one[key] for one in self.metrics(name, point, decoding)])

    def noted(self, name: str, make: Callable[[], Any], *decides: Any) -> Any:
        """A measurement of the world's models or of given captions, made once and kept with the results. The page is thus the
        same where these models are not built, or are built by another processor.

        Args:
            name: of the measurement.
            make: measures; returns what JSON can hold.
            decides: models and settings that it depends on besides data and evaluation; models of the world count by their
                definition.
        """
        recipe = next(iter(self.measured.values()))[0].recipe
        key = resolved_key(recipe, *decides, sections=DECIDES_NOTES)

        def made() -> Any:
            self.build()
            return make()

        return self.notes.read(f"{Path(self.file.page).stem} {name}", key, made)

    def interval(self, name: str, key: str, *, over: str, point: str = "selected") -> tuple[float, float]:
        """95 % paired-bootstrap interval over images of a row's gain over another, seeds averaged first."""
        ours, theirs = (np.mean(self._per_image(row, key, p), axis=0) for row, p in ((name, point), (over, "selected")))
        _, low, high = paired_bootstrap(theirs, ours)
        return float(low), float(high)

    def _per_image(self, name: str, key: str, point: str) -> list[np.ndarray]:
        found = [self.evaluation(task, point) for task in self.measured[name]]
        return [np.asarray(one.result().per_image[key], dtype=np.float64) for one in found if one is not None]

    def at_fixed(
        self,
        name: str,
        fixed: str,
        value: float,
        key: str,
        *,
        point: str = "last",
        values: Sequence[Any] = (),
    ) -> Seeds | None:
        """A metric where another has a value, read on each seed's own curve under greedy decoding.

        The start captioner is not a point of a curve: no value of the knob gives it.

        Args:
            name: a row with a curve.
            fixed: the metric that is fixed.
            value: its value, as it is stored.
            key: the metric to read.
            point: ``last`` or ``selected``.
            values: of the knob, those whose points count; all if empty.

        Returns:
            One value per seed as tables print them; None where a seed's curve does not reach the value.
        """
        curve = self.as_curve(name, values)
        found = [interpolate(*curve.path(point, seed, fixed, key), value) for seed in curve.seeds(point)]
        reached = [one for one in found if one is not None]
        return Seeds([scale_of(key) * one for one in reached]) if len(reached) == len(found) else None

    def common_middle(
        self, names: Sequence[str], key: str, *, point: str = "last", values: Sequence[Any] = ()
    ) -> float | None:
        """The middle of the range of a metric that every seed's curve of every row encloses; None if there is none."""
        found = self.common_range(names, key, point=point, values=values)
        return found and (found[0] + found[1]) / 2

    def common_range(
        self, names: Sequence[str], key: str, *, point: str = "last", values: Sequence[Any] = ()
    ) -> tuple[float, float] | None:
        """The range of a metric that every seed's curve of every row encloses; None if there is none.

        Args:
            names: of rows with a curve.
            key: the metric.
            point: ``last`` or ``selected``.
            values: of the knob, those whose points count; all if empty.
        """
        curves = [self.as_curve(name, values) for name in names]
        ranges = [curve.path(point, seed, key, key)[0] for curve in curves for seed in curve.seeds(point)]
        if not all(map(len, ranges)):
            return None
        low, high = max(map(min, ranges)), min(map(max, ranges))
        return (low, high) if low < high else None

    def as_curve(self, name: str, values: Sequence[Any] = ()) -> Curve:
        """The measured points of a row along its knob, under the first decoding.

        Args:
            name: of a row with a curve.
            values: of the knob, those whose points count; all if empty.
        """
        row = self.file.rows[name]
        knob = next(iter(row.curve), None)
        counted = {value: shown for value, shown in self.curve(name).items() if not values or value in values}
        points = tuple(
            Point(
                {str(knob): value}, tuple(Training(task.seed, self.checkpoints(task)) for task in self.measured[shown])
            )
            for value, shown in counted.items()
        )
        return Curve(name, name, row.recipe, knob, points)


def _require_choice(name: str, recipe: Mapping[str, Any]) -> None:
    """Raise where trainings would not measure what their row's point is chosen by; one of equals would count as the best."""
    listener = option(recipe, "evaluation.listener") or option(recipe, "listener.path")
    if option(recipe, "training.metric_for_best_model") is None and listener is None:
        raise UsageError(
            f"points of {name} are chosen by {METRIC} on val, since its recipe names no metric, but it has no listener: set "
            "training.metric_for_best_model."
        )


def points_text(row: Row, setting: Setting) -> str:
    """``learning_rate 3e-05, beta 0.2, `` of a point: the options that its row searches or draws a curve over."""
    keys = [key for key in setting.overrides if key in row.grid or key in row.curve or row.point_of]
    names = {key: key.removesuffix(".captioner").rpartition(".")[2] for key in keys}
    return "".join(f"{name} {value_text(setting.overrides[key])}, " for key, name in names.items())


def value_text(value: Any) -> str:
    """A value of an option as tables print it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rate(task: Task) -> float:
    rate = option(task.recipe, "training.learning_rate")
    return float(
        rate["captioner"] if isinstance(rate, dict) and "captioner" in rate else 0.0 if isinstance(rate, dict) else rate
    )
