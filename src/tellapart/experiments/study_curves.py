"""A study whose methods are compared along the curve of their knob, not at one point (Vered et al., ICCV 2019, section 5.4)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tellapart.experiments.study import Study
from tellapart.experiments.study_plan import Seeds
from tellapart.experiments.world_run import ROWS, Setting
from tellapart.metrics.curves import interpolate


@dataclass(frozen=True)
class CurveStudy(Study):
    """One learning rate a method, chosen on val at the middle value of its knob; then every value at that rate.

    Args:
        one_seed: rows that are measured with the first seed only.
        rate_of: row -> the row whose learning rate it takes, instead of a grid of its own.
    """

    one_seed: tuple[str, ...] = field(default=())
    rate_of: Mapping[str, str] = field(default_factory=dict)

    def grid(self, row: str) -> list[Setting]:
        """The learning rates, at the middle value of the knob (the upper one of two); nothing for a row with another's."""
        if row in self.rate_of:
            return []
        values = ROWS[row].values
        return [setting for setting in super().grid(row) if setting.knob == values[len(values) // 2]]

    def chosen(self, row: str) -> Setting:
        """The grid point that retrieves best on val, by the listener that decides; with another's rate, if it takes one."""
        if row in self.rate_of:
            rate = self.chosen(self.rate_of[row]).learning_rate
            return replace(self.base, row=row, learning_rate=rate, knob=ROWS[row].values[0], seed=self.seeds[0])
        return super().chosen(row)

    def curve(self, row: str) -> list[Setting]:
        """One setting a value of the knob, at the chosen rate."""
        chosen = self.chosen(row)
        return [replace(chosen, knob=value) for value in ROWS[row].values]

    def seeded(self, setting: Setting) -> list[Setting]:
        """The setting with its row's seeds."""
        return super().seeded(setting)[: 1 if setting.row in self.one_seed else None]

    def protocol(self) -> str:
        """How a point was chosen, for the head of the page."""
        tried = sorted({setting.learning_rate for row in self.plan.rows for setting in self.grid(row)})
        rates, seeds = ", ".join(f"{rate:g}" for rate in tried), ", ".join(map(str, self.seeds))
        return f"""learning rates {rates}
are tried with seed {self.seeds[0]} at one value of a method's knob and chosen on **val**; then every value of the knob at that
rate, seeds {seeds} or the first alone, mean ± standard deviation."""

    def measured(self) -> Iterator[tuple[str, list[Setting]]]:
        """Name of a table row, the method with its knob's value -> its settings, one a seed."""
        for row in self.plan.starts:
            yield row, self.seeded(self.chosen(row))
        for row in self.plan.rows:
            for setting in self.curve(row):
                yield named(setting), self.seeded(setting)


def named(setting: Setting) -> str:
    """What a point of a curve is called in tables."""
    return setting.row if setting.knob is None else f"{setting.row} ({setting.knob:g})"


def at_fixed(
    study: CurveStudy,
    row: str,
    fixed: str,
    value: float,
    metric: str,
    *,
    factor: float = 1.0,
    point: str = "last",
    knobs: Collection[float | None] = (),
) -> Seeds | None:
    """A metric where another has a value, read on each seed's own curve under greedy decoding.

    The start captioner is no point of a curve: no value of the knob gives it, and where its own value is asked for, every method
    would be read at the start.

    Args:
        study: finished.
        row: the method.
        fixed: the metric that is fixed.
        value: its value, as it is stored.
        metric: the metric to read.
        factor: what it is multiplied by.
        point: ``last`` or ``selected``.
        knobs: the points of the curve that count, all if empty; rows with fewer points than others are compared by theirs.

    Returns:
        One value a seed; none where a seed's curve does not reach the value.
    """
    points = [[study.tested(s)[point]["greedy"] for s in study.seeded(one)] for one in _counted(study, row, knobs)]
    read = [
        interpolate([one[fixed] for one in curve], [one[metric] for one in curve], value)
        for curve in zip(*points, strict=True)
    ]
    found = [one for one in read if one is not None]
    return Seeds([factor * one for one in found]) if len(found) == len(read) else None


def _counted(study: CurveStudy, row: str, knobs: Collection[float | None]) -> list[Setting]:
    return [setting for setting in study.curve(row) if not knobs or setting.knob in knobs]


def common_middle(
    study: CurveStudy, rows: Sequence[str], metric: str, *, point: str = "last", knobs: Collection[float | None] = ()
) -> float | None:
    """The middle of the range of a metric that every seed's curve of every row encloses, so where they can be compared.

    Args:
        study: finished.
        rows: the methods.
        metric: the one to be fixed.
        point: ``last`` or ``selected``.
        knobs: the points of the curves that count, all if empty.

    Returns:
        The value, or none where there is no such range.
    """
    lows, highs = [], []
    for row in rows:
        counted = _counted(study, row, knobs)
        points = [[study.tested(s)[point]["greedy"][metric] for s in study.seeded(one)] for one in counted]
        for curve in zip(*points, strict=True):
            lows.append(min(curve))
            highs.append(max(curve))
    return (max(lows) + min(highs)) / 2 if max(lows) < min(highs) else None
