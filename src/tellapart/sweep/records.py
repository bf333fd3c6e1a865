"""What a frontier consists of: curves of points, a point of trainings, a training of measured checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError, reason_of
from tellapart.evaluation.protocol import Protocol, joint_line
from tellapart.evaluation.results import METRICS_FILE, EvaluationResult
from tellapart.files import read_json, write_json

CHECKPOINTS = ("selected", "last")
"""Which models of a training are measured: the one that its recipe's rule selects, and the one of the last step."""

START = "start"
"""What the start model's only evaluation is called."""

FRONTIER_FILE = "frontier.json"

DONE_FILE = "done.json"
"""Says that a measurement is done, and where the evaluation of each checkpoint is."""


@dataclass(frozen=True)
class Measured:
    """One evaluation on disk.

    Args:
        step: training steps that the measured model has taken.
        folder: what ``EvaluationResult.save`` wrote.
        metrics: name -> number, on the scale they are stored in.
        protocol: how it was measured.
    """

    step: int
    folder: Path
    metrics: dict[str, float]
    protocol: Protocol

    @staticmethod
    def read(folder: Path, step: int) -> Measured:
        """The numbers of an evaluation, without its captions.

        Raises:
            UsageError: they are missing or damaged.
        """
        try:
            value = read_json(folder / METRICS_FILE)
            return Measured(step, folder, dict(value["metrics"]), Protocol.from_json(value["protocol"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder} holds no readable evaluation ({reason_of(error)}): {measure_again(folder)}"
            ) from error

    def result(self) -> EvaluationResult:
        """All of the evaluation, with captions."""
        return EvaluationResult.load(self.folder)


def measure_again(folder: Path) -> str:
    """What to do about a damaged evaluation: its measurement counts as done while ``DONE_FILE`` is there."""
    done = next((place / DONE_FILE for place in folder.parents if (place / DONE_FILE).exists()), None)
    return f"{'run' if done is None else f'delete {done} and run'} the same command again, which measures it again."


@dataclass(frozen=True)
class Training:
    """One training, or a start model (which has the only checkpoint ``start``).

    Args:
        seed: of the training.
        checkpoints: ``selected`` and ``last`` -> what they score; ``selected`` is missing where nothing selects.
        start: what the model that it began from scores; None where there is none, or it was not measured.
    """

    seed: int
    checkpoints: dict[str, Measured]
    start: Measured | None = None


@dataclass(frozen=True)
class Point:
    """One setting, trained with every seed.

    Args:
        settings: option -> value, of the options that the grid varies.
        trainings: those that succeeded, by seed.
        failed: seed -> why there is no training.
    """

    settings: dict[str, Any]
    trainings: tuple[Training, ...]
    failed: dict[int, str] = field(default_factory=dict)

    def label(self) -> str:
        """``objective.beta=0.1``, or ``as the recipe says`` where nothing varies."""
        return ", ".join(f"{key}={value}" for key, value in self.settings.items()) or "as the recipe says"

    def begins(self) -> dict[int, Measured]:
        """Seed -> what the start model of its training scores, where that is known."""
        return {training.seed: training.start for training in self.trainings if training.start is not None}

    def start(self) -> tuple[Training, ...]:
        """The start models of its trainings, each once: one per seed that redraws it."""
        return _each_once(self.begins())


@dataclass(frozen=True)
class Curve:
    """The points that one knob gives, in its order.

    Args:
        label: its name in tables and pictures.
        method: training method.
        recipe: the recipe's file.
        knob: the option that varies along the curve; None for a single point.
        points: in the knob's order.
    """

    label: str
    method: str
    recipe: str
    knob: str | None
    points: tuple[Point, ...]

    def seeds(self, checkpoint: str) -> list[int]:
        """The seeds of which any point has this checkpoint."""
        held = {t.seed for p in self.points for t in p.trainings if checkpoint in t.checkpoints}
        return sorted(held)

    def path(self, checkpoint: str, seed: int, x: str, y: str) -> tuple[list[float], list[float]]:
        """``([n], [n])``: two metrics of one seed's models along the knob, where both are finite."""
        found = [
            training.checkpoints[checkpoint].metrics
            for point in self.points
            for training in point.trainings
            if training.seed == seed and checkpoint in training.checkpoints
        ]
        both = [(metrics.get(x, math.nan), metrics.get(y, math.nan)) for metrics in found]
        kept = [(a, b) for a, b in both if math.isfinite(a) and math.isfinite(b)]
        return [a for a, _ in kept], [b for _, b in kept]

    def all_measured(self) -> Iterator[Measured]:
        """Every evaluation, those of start models first."""
        trainings = [training for point in self.points for training in point.trainings]
        begins = {each.start.folder: each.start for each in trainings if each.start is not None}
        yield from begins.values()
        for training in trainings:
            yield from training.checkpoints.values()


def start_models(curves: Sequence[Curve]) -> list[tuple[list[tuple[Curve, Point]], tuple[Training, ...]]]:
    """The points that begin from one start model, or from its redraws by seed, with these; several where a knob chooses it.

    A knob such as the rank of an adapter changes the captioner's section, and not what its start model scores: such points begin
    from one, which counts once a seed.
    """
    found: list[tuple[list[tuple[Curve, Point]], dict[int, Measured]]] = []
    for curve, point in ((each, point) for each in curves for point in each.points):
        own = point.begins()
        if not own:
            continue
        group = next((each for each in found if _same_start(each[1], own)), None)
        if group is None:
            found.append(group := ([], {}))
        points, known = group
        points.append((curve, point))
        same = {own[seed].folder: known[seed] for seed in own.keys() & known.keys()}
        known |= {seed: same.get(one.folder, one) for seed, one in own.items() if seed not in known}
    return [(points, _each_once(known)) for points, known in found]


def _same_start(one: Mapping[int, Measured], other: Mapping[int, Measured]) -> bool:
    """Whether the start models of all seeds that both have score the same."""
    shared = one.keys() & other.keys()
    return bool(shared) and all(one[seed].metrics == other[seed].metrics for seed in shared)


def _each_once(begins: Mapping[int, Measured]) -> tuple[Training, ...]:
    """Start models by seed; one that several seeds share counts once, or the spread over seeds would be too small."""
    first: dict[Path, Training] = {}
    for seed, one in sorted(begins.items()):
        first.setdefault(one.folder, Training(seed, {START: one}))
    return tuple(first.values())


def values(point: Point, checkpoint: str, key: str) -> list[float]:
    """``[seeds]``: a metric of a point's models, of those that have it and where it is finite."""
    measured = [t.checkpoints[checkpoint].metrics for t in point.trainings if checkpoint in t.checkpoints]
    return [metrics[key] for metrics in measured if key in metrics and math.isfinite(metrics[key])]


def metric_keys(curves: Sequence[Curve]) -> list[str]:
    """Every metric that any model has, in the order first met."""
    return list(dict.fromkeys(key for curve in curves for measured in curve.all_measured() for key in measured.metrics))


def require_comparable(curves: Sequence[Curve]) -> str:
    """One line that says how all were measured.

    Raises:
        UsageError: nothing was measured, or not all in the same way.
    """
    every = [(curve, measured) for curve in curves for measured in curve.all_measured()]
    if not every:
        raise UsageError("no training of the frontier was measured: see the failures above, and run it again.")
    distinct: list[tuple[Curve, Measured]] = []
    for curve, measured in every:
        if all(measured.protocol != other.protocol for _, other in distinct):
            distinct.append((curve, measured))
    # Each with each: two may differ in a retriever or model that the first one lacks.
    for (one_curve, one), (other_curve, other) in combinations(distinct, 2):
        fields = one.protocol.differences(other.protocol)
        if fields:
            raise UsageError(
                f"{one_curve.label} and {other_curve.label} were measured differently ({', '.join(fields)}): measure them on "
                "the same data, with the same decoding, retrievers and further models."
            )
    return joint_line([measured.protocol for _, measured in distinct])


def write_curves(path: Path, curves: Sequence[Curve], further: Mapping[str, Any]) -> None:
    """``frontier.json``: the curves, with paths relative to its folder, and ``further`` numbers read off them."""
    home = path.parent
    write_json(path, {"format": 1, **further, "curves": [_curve_json(curve, home) for curve in curves]})


def read_curves(folder: Path) -> list[Curve]:
    """The curves of a frontier that was written earlier.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    path = folder / FRONTIER_FILE
    try:
        value = read_json(path)
        return [_curve_from(entry, folder) for entry in value["curves"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a frontier ({error}): name the --output_dir of one, or run it again."
        ) from error


def _curve_json(curve: Curve, home: Path) -> dict[str, Any]:
    points = [
        {
            "settings": point.settings,
            "trainings": [_training_json(training, home) for training in point.trainings],
            "failed": {str(seed): why for seed, why in point.failed.items()},
        }
        for point in curve.points
    ]
    head = {name: getattr(curve, name) for name in ("label", "method", "recipe", "knob")}
    return {**head, "points": points}


def _training_json(training: Training, home: Path) -> dict[str, Any]:
    checkpoints = {name: _measured_json(measured, home) for name, measured in training.checkpoints.items()}
    start = None if training.start is None else _measured_json(training.start, home)
    return {"seed": training.seed, "checkpoints": checkpoints, START: start}


def _measured_json(measured: Measured, home: Path) -> dict[str, Any]:
    folder = Path(os.path.relpath(measured.folder, home)).as_posix()
    return {"step": measured.step, "folder": folder, "metrics": measured.metrics}


def _curve_from(value: dict[str, Any], home: Path) -> Curve:
    points = tuple(
        Point(
            dict(point["settings"]),
            tuple(_training_from(training, home) for training in point["trainings"]),
            {int(seed): why for seed, why in point["failed"].items()},
        )
        for point in value["points"]
    )
    return Curve(value["label"], value["method"], value["recipe"], value["knob"], points)


def _training_from(value: dict[str, Any], home: Path) -> Training:
    checkpoints = {name: _measured_from(measured, home) for name, measured in value["checkpoints"].items()}
    start = None if value[START] is None else _measured_from(value[START], home)
    return Training(int(value["seed"]), checkpoints, start)


def _measured_from(value: dict[str, Any], home: Path) -> Measured:
    return Measured.read(Path(os.path.normpath(home / value["folder"])), int(value["step"]))
