"""Which checkpoint is the best: the highest metric among those that kept enough of the start's quality."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tellapart.errors import UsageError
from tellapart.training.config import TrainConfig


@dataclass(frozen=True)
class Best:
    """The selected checkpoint.

    Args:
        step: optimiser steps done when it was evaluated.
        metric: name of the metric that selected it.
        value: that metric's value.
    """

    step: int
    metric: str
    value: float


class Selection:
    """Remembers the best evaluation so far; an equal one that comes later does not replace it.

    The start model takes part, so that there is always a selected checkpoint, and nothing worse than the start is ever
    called best.

    Args:
        config: ``metric_for_best_model``, ``greater_is_better`` and ``best_floor`` are read here.
        state: what ``state`` gave, when a run is resumed; empty or none at the start.
    """

    def __init__(self, config: TrainConfig, state: Mapping[str, Any] | None = None) -> None:
        name = config.metric_for_best_model
        self._metric = None if name is None else name.removeprefix("eval_")
        self._sign = 1.0 if config.greater_is_better else -1.0
        self._floor = {metric.removeprefix("eval_"): share for metric, share in config.best_floor.items()}
        self.start: dict[str, float] = dict(state["start"]) if state else {}
        best = Best(**state["best"]) if state and state["best"] else None
        # Values of another metric, which an earlier part of the run was selected by, say nothing here.
        self.best: Best | None = best if best is not None and best.metric == self._metric else None
        self._known = {*self.start, *([] if best is None else [best.metric])}

    def offer(self, step: int, metrics: dict[str, float]) -> bool:
        """Take in an evaluation; whether it is the best so far.

        An evaluation without a metric that an earlier one gave is not the best.

        Raises:
            UsageError: no evaluation so far gives a metric that selects, a floor cannot be taken from the start's value, or a
                resumed run lacks that value.
        """
        if self._metric is None:
            return False
        values = {name.removeprefix("eval_"): value for name, value in metrics.items()}
        # A misspelt name shows at the first evaluation; a figure that a later one lacks must not cost the run.
        self._known = set(values) if step == 0 else self._known | set(values)
        for option, names in (("metric_for_best_model", [self._metric]), ("best_floor", list(self._floor))):
            if (lacking := _lacking(names, self._known)) is not None:
                raise UsageError(f"{option} names {lacking!r}, but the evaluation gives {', '.join(sorted(values))}.")
        if step == 0:
            self.start = _floor_start(self._floor, values)
        if (lacking := _lacking(self._floor, self.start)) is not None:
            raise UsageError(
                f"best_floor names {lacking!r}, of which this resumed run kept no value of step 0: resume with the "
                "best_floor it began with."
            )
        value = values.get(self._metric, math.nan)
        kept = all(values.get(name, math.nan) >= share * self.start[name] for name, share in self._floor.items())
        if not kept or not math.isfinite(value):
            return False
        if self.best is not None and self._sign * value <= self._sign * self.best.value:
            return False
        self.best = Best(step, self._metric, value)
        return True

    def keeps_floor(self, metrics: Mapping[str, float]) -> bool:
        """Whether metrics of an evaluation keep within ``best_floor``; what they lack is not held against them."""
        known = self._floor.keys() & metrics.keys() & self.start.keys()
        return all(metrics[name] >= self._floor[name] * self.start[name] for name in known)

    def state(self) -> dict[str, Any]:
        """State for a resumed run."""
        return {"start": self.start, "best": None if self.best is None else asdict(self.best)}


def _floor_start(floor: Mapping[str, float], values: Mapping[str, float]) -> dict[str, float]:
    """The start's values of the metrics in ``best_floor``.

    Raises:
        UsageError: one is not finite, which a checkpoint cannot hold, or the share of one is above the value itself.
    """
    start = {name: values[name] for name in floor}
    for name, value in start.items():
        if not math.isfinite(value):
            raise UsageError(
                f"best_floor names {name!r}, which is {value} at step 0, so that no share of it can be kept: name another metric."
            )
        if value < 0 and floor[name] < 1:
            raise UsageError(
                f"best_floor asks for {floor[name]:g} of {name!r}, which is {value:.4g} at step 0, and such a share of a "
                "negative number is above it: give 1 or more, or name another metric."
            )
    return start


def _lacking(names: Iterable[str], values: Collection[str]) -> str | None:
    """The first name without a value."""
    return next((name for name in names if name not in values), None)
