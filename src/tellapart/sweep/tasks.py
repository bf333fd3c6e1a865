"""The trainings of a sweep: each in a folder named by what decides it, with the measurements that are asked for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError, reason_of
from tellapart.files import read_json, write_json
from tellapart.locks import NAME as LOCK
from tellapart.locks import Lock, TakenError
from tellapart.recipe.fingerprint import NOTED, note_content
from tellapart.run_files import LOG_FILE
from tellapart.sweep.jobs import Job, run_jobs
from tellapart.sweep.records import DONE_FILE, START, Measured, measure_again
from tellapart.sweep.trainings import (
    DECIDES_START,
    Resolved,
    build_stages,
    has_start,
    load,
    option,
    resolved_key,
    with_seed,
)

JOB_MODULE = "tellapart.cli.job"
NO_PART_OF_REWARDS = ("method", "captioner", "data", "objective", "evaluation", "training")
"""Sections that say nothing of how a reward scores captions that are given."""

POINTS = "points"
"""Folder of the trainings; its name is that of frontiers since their first version."""

MEASURED = "measured"
"""Folder of a training's measurements."""

SECONDS_OF_ALL = "seconds/all"
"""Key of the seconds of all steps, in the log of a training that is kept without its steps."""

ASKED_FILE, TRAINED_FILE, SECONDS_FILE = "asked.json", "trained.json", "seconds.json"


def read_done(file: Path) -> dict[str, tuple[str, int]]:
    """Checkpoint -> the folder of its evaluation next to the file, and its step.

    Raises:
        UsageError: the file is damaged.
    """
    try:
        return {name: (str(each["folder"]), int(each["step"])) for name, each in read_json(file).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is damaged ({reason_of(error)}): {measure_again(file)}") from error


@dataclass(frozen=True)
class Setting:
    """A recipe with options changed.

    Args:
        recipe: a path, or the stem of a file in ``recipes/``.
        overrides: option -> value.
    """

    recipe: str
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def having(self, overrides: Mapping[str, Any]) -> Setting:
        """The same with further options changed."""
        return Setting(self.recipe, {**self.overrides, **overrides})


@dataclass(frozen=True)
class Task:
    """One training, or the start model of one, with what is to be measured of it.

    Args:
        name: shown next to the bar and in errors.
        folder: of the training.
        seed: of the training.
        steps: optimiser steps, for the bar.
        recipe: resolved.
        trains: whether there is anything to train.
        measures: place within ``folder`` -> options of ``tellapart score``.
        times: whether to time its steps, and do nothing else.
    """

    name: str
    folder: Path
    seed: int
    steps: int
    recipe: Resolved
    trains: bool = True
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    times: bool = False

    @property
    def job(self) -> Job:
        """The process that does it."""
        markers = [f"{place}/{DONE_FILE}" for place in self.measures] or [TRAINED_FILE]
        if self.times:
            markers = [SECONDS_FILE]
        return Job(self.name, JOB_MODULE, (ASKED_FILE, "--end_with_stdin"), self.folder, self.steps, tuple(markers))

    def done(self) -> bool:
        """Whether all of it is."""
        return self.job.done()

    def require_weights(self) -> None:
        """Have a training that was kept without its weights count as not done."""
        if not _trained(self.folder):
            for marker in self.job.markers:
                (self.folder / marker).unlink(missing_ok=True)

    def write(self) -> None:
        """Put down what the process is to do."""
        asked = {name: getattr(self, name) for name in ("name", "recipe", "trains", "measures", "times")}
        write_json(self.folder / ASKED_FILE, asked)

    def measured(self, measure: int = 0) -> dict[str, Measured]:
        """Checkpoint -> what it scores: ``selected`` and ``last``, or ``start`` of a start model.

        Args:
            measure: which of the measurements.

        Raises:
            UsageError: the files are damaged.
        """
        place = self.folder / list(self.measures)[measure]
        found = read_done(place / DONE_FILE)
        return {name: Measured.read(place / folder, step) for name, (folder, step) in found.items()}

    @cached_property
    def steps_of(self) -> dict[str, int]:
        """``selected`` and ``last`` -> step; where nothing selects, both are the last step.

        Raises:
            UsageError: the file is damaged.
        """
        try:
            told = read_json(self.folder / TRAINED_FILE)
            return {name: int(told["last"] if step is None else step) for name, step in told.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self.folder / TRAINED_FILE} is damaged ({reason_of(error)}): delete {self.folder} and run the same command "
                "again, which trains it again."
            ) from error

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The lines of the training's log."""
        text = (self.folder / LOG_FILE).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    @property
    def hours(self) -> float:
        """Hours that the steps of the training took, with waiting for other processes.

        Where not every step was logged, the others count as much as those that were.
        """
        lines = [[value for key, value in line.items() if key.startswith("seconds/")] for line in self.history]
        logged = sum(bool(line) for line in lines)
        whole = any(SECONDS_OF_ALL in line for line in self.history)  # kept as one number
        share = 1.0 if whole or not logged else logged / max(logged, self.steps_of["last"])
        return sum(map(sum, lines)) / share / 3600

    def captioner(self) -> Path:
        """The captioner that was trained, after the last step.

        Raises:
            FileNotFoundError: it is not trained yet.
        """
        folder = self.folder / f"checkpoint-{self.steps_of['last']}" / "captioner"
        return folder.resolve()  # a relative "world/..." would be read as a stage of the built-in world

    def note_captioner(self) -> None:
        """Write the digest of the captioner, by which rows that begin with it are found where only results were kept."""
        if self.captioner().is_dir():
            note_content(self.captioner())

    def watched(self) -> dict[int, dict[str, float]]:
        """Step -> the metrics of the recipe's own evaluation."""
        return self._watched

    @cached_property
    def _watched(self) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        for line in self.history:
            metrics = {k.removeprefix("eval_"): v for k, v in line.items() if k.startswith("eval_")}
            if metrics:
                found[line["step"]] = metrics
        return found

    def on_val(self, checkpoint: str = "selected") -> dict[str, float]:
        """What the recipe's own evaluation said of a checkpoint, or what was measured of a start model.

        Raises:
            UsageError: the recipe evaluates nothing while it trains.
        """
        if not self.trains:
            return self.measured()[START].metrics
        step, watched = self.steps_of[checkpoint], self.watched()
        if step not in watched:
            raise UsageError(
                f"{self.name} has no evaluation of step {step}: give its recipe evaluation.split and eval_steps."
            )
        return watched[step]

    @property
    def seconds(self) -> float:
        """CPU seconds of a training step, once timed."""
        return read_json(self.folder / SECONDS_FILE)["seconds"]


class Sweep:
    """Plans trainings under one folder, and runs those that are not done.

    Args:
        root: of everything.
        common: option -> value, for all recipes.
        redraw_start: whether a seed redraws the start captioner of the built-in world, too.
        kept: folder of an unpacked archive. Its trainings are read and continued there, all others below ``root``.
    """

    def __init__(
        self,
        root: Path,
        *,
        common: Mapping[str, Any] | None = None,
        redraw_start: bool = True,
        kept: Path | None = None,
    ) -> None:
        self.root, self.common, self.redraw_start, self.kept = root, dict(common or {}), redraw_start, kept
        self._loaded: dict[str, tuple[str, Resolved]] = {}

    def load(self, setting: Setting) -> tuple[str, Resolved]:
        """Method and resolved recipe of a setting, each read once.

        Raises:
            UsageError: there is no such recipe or option.
        """
        known = json.dumps([setting.recipe, dict(setting.overrides)], sort_keys=True, default=str)
        if known not in self._loaded:
            self._loaded[known] = load(setting.recipe, {**self.common, **setting.overrides})
        return self._loaded[known]

    def training(
        self, setting: Setting, seed: int | None, name: str, measures: Sequence[Mapping[str, Any]] = ()
    ) -> Task:
        """A training.

        Args:
            setting: its recipe.
            seed: of training and start captioner; None takes the recipe's.
            name: shown next to the bar.
            measures: options of ``tellapart score``.
        """
        method, seed, recipe = self._seeded(setting, seed)
        steps = option(recipe, "training.max_steps") or 1
        folder = self._folder(method, resolved_key(recipe))
        return Task(name, folder, seed, steps, recipe, measures=self._placed(recipe, measures))

    def start(
        self, setting: Setting, seed: int | None, name: str = "", measures: Sequence[Mapping[str, Any]] = ()
    ) -> Task | None:
        """The measurement of a setting's start model; None where it starts from random weights."""
        _, seed, recipe = self._seeded(setting, seed)
        if not has_start(recipe):
            return None
        folder = self._folder(START, resolved_key(recipe, sections=DECIDES_START))
        named = name or f"start model {option(recipe, 'captioner.model_name_or_path')}"
        return Task(named, folder, seed, 0, recipe, trains=False, measures=self._placed(recipe, measures))

    def _seeded(self, setting: Setting, seed: int | None) -> tuple[str, int, Resolved]:
        """Method, seed and recipe of a training."""
        method, resolved = self.load(setting)
        seed = option(resolved, "training.seed") if seed is None else seed
        return method, seed, with_seed(resolved, seed, redraw_start=self.redraw_start)

    def _placed(self, recipe: Resolved, measures: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Each measurement in a folder that is named by what decides it."""
        found = {}
        for options in measures:
            how = {**options, "split": options.get("split") or option(recipe, "evaluation.split") or "val"}
            if how.get("samples", 0) is None:
                how["samples"] = option(recipe, "evaluation.samples")
            key = resolved_key(recipe, how, *self._reranking(how), sections=("data",))
            found[f"{MEASURED}/{re.sub('[^a-z0-9]+', '-', how['split'].lower())}-{key}"] = how
        return found

    def _reranking(self, how: Mapping[str, Any]) -> list[Resolved]:
        """The reward that a measurement chooses captions by, with its parts; nothing where it does not."""
        if not how.get("rerank"):
            return []
        _, resolved = self.load(Setting(how["rerank"]))
        return [{name: section for name, section in resolved.items() if name not in NO_PART_OF_REWARDS}]

    def _folder(self, name: str, key: str) -> Path:
        kept = None if self.kept is None else self.kept / f"{name}-{key}"
        return kept if kept is not None and kept.is_dir() else self.root / POINTS / f"{name}-{key}"

    def run(self, tasks: Iterable[Task], description: str = "", *, workers: int = 2) -> list[Job]:
        """Do what is not done; returns the jobs that failed.

        Raises:
            UsageError: a reward's listener fails its probe, or another process runs trainings in the folder.
            KeyboardInterrupt: stopped on request; what is done is kept, and each training leaves a checkpoint.
        """
        each = distinct(tasks)
        if all(task.done() for task in each):
            if (self.root / LOCK).exists():
                # Of a process that was killed, which taking it removes; or of one that runs other trainings, which may go on.
                with suppress(TakenError), Lock(self.root / LOCK, "running trainings in"):
                    pass
            return []
        with Lock(self.root / LOCK, "running trainings in"):
            return self._run(each, description, workers)

    def _run(self, each: Sequence[Task], description: str, workers: int) -> list[Job]:
        waiting = [task for task in each if not task.done()]
        measures = ((task.recipe, how) for task in waiting for how in task.measures.values())
        reranking = [(recipe, self._reranking(how)) for recipe, how in measures]
        build_stages([*((task.recipe, task.measures) for task in waiting), *reranking])
        for task in waiting:
            task.write()
        trainings = sum(task.steps > 0 for task in each)
        try:
            return run_jobs([task.job for task in each], description or f"{trainings} trainings", workers=workers)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt("stopped; the same command resumes there") from error


def distinct(tasks: Iterable[Task]) -> list[Task]:
    """Every folder once, with all that is asked for of it; measuring needs the training that another asks for alone."""
    found: dict[Path, Task] = {}
    for task in tasks:
        before = found.get(task.folder)
        measures = {**(before.measures if before else {}), **task.measures}
        found[task.folder] = Task(
            (before or task).name, task.folder, task.seed, task.steps, task.recipe, task.trains, measures, task.times
        )
    return list(found.values())


def carry_out(folder: Path, asked_file: Path) -> None:
    """What the process of a task does: train unless that is done, then measure, or time steps.

    Each measurement writes ``done.json``: checkpoint -> step, and the folder of its evaluation.

    Args:
        folder: of the task.
        asked_file: what ``write`` wrote.

    Raises:
        UsageError: the recipe or a measurement cannot be carried out.
    """
    from tellapart.sweep import trainings

    asked = read_json(asked_file)
    recipe = asked["recipe"]
    if asked["times"]:
        write_json(folder / SECONDS_FILE, {"seconds": trainings.seconds_per_step(recipe)})
        return
    if asked["trains"] and not _trained(folder):
        write_json(folder / TRAINED_FILE, trainings.train(recipe, folder))
    for place, options in asked["measures"].items():
        if not (folder / place / DONE_FILE).exists():
            _measure(asked, folder, folder / place, options)


def _trained(folder: Path) -> bool:
    """Whether the training is done and its weights are there; the record of one that was kept without them is removed, with
    its measurements, which are of other weights than those that it will have."""
    if not (folder / TRAINED_FILE).exists():
        return False
    last = read_json(folder / TRAINED_FILE)["last"]
    if has_weights(folder / f"checkpoint-{last}"):
        return True
    for name in (TRAINED_FILE, LOG_FILE, SECONDS_FILE):
        (folder / name).unlink(missing_ok=True)
    for left in (folder / MEASURED, *(one for one in folder.glob("checkpoint-*") if not has_weights(one))):
        shutil.rmtree(left, ignore_errors=True)
    return False


def has_weights(checkpoint: Path) -> bool:
    """Whether a checkpoint has more than the digest of its captioner."""
    return checkpoint.is_dir() and any(part.suffix != NOTED for part in checkpoint.iterdir())


def _measure(asked: Mapping[str, Any], folder: Path, place: Path, options: Mapping[str, Any]) -> None:
    from tellapart.sweep.trainings import measure

    recipe, measured, done = asked["recipe"], dict[int, str](), {}
    models = {START: (0, option(recipe, "captioner.model_name_or_path"))}
    for name, (step, model) in (_models(folder) if asked["trains"] else models).items():
        if step not in measured:  # where the last step is the selected one, it is measured once
            result = measure(model, recipe, options, name=f"{asked['name']}, {name}")
            measured[step] = result.save(place / name).relative_to(place).as_posix()
        done[name] = {"step": step, "folder": measured[step]}
    write_json(place / DONE_FILE, done)


def _models(folder: Path) -> dict[str, tuple[int, str]]:
    """Checkpoint -> its step, and what to measure."""
    steps = read_json(folder / TRAINED_FILE)
    folder = folder.resolve()  # a relative "world/..." would be read as a stage of the built-in world
    places = {"selected": folder / "best", "last": folder / f"checkpoint-{steps['last']}"}
    found = {name: (step, str(places[name])) for name, step in steps.items() if step is not None}
    if (places["last"] / "captioner").is_dir():
        return found
    name, (step, _) = next(iter(found.items()))  # only a listener has learned: the run itself tells both
    return {name: (step, str(folder))}
