"""Warnings from a run's log, for readers: those of ``tellapart.verdicts``, with their figures as printed.

A warning that held at several evaluations is one alarm, also where several keys gave it; each metric of a floor has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tellapart.evaluation.columns import describe_log
from tellapart.verdicts.examine import Examination, Verdict, examine
from tellapart.verdicts.rules import EVAL_PREFIX, FLOOR, HACKING

Curve = Sequence[tuple[int, float]]
"""``(step, value)`` pairs by rising step."""


@dataclass(frozen=True)
class Alarm:
    """A rule that was broken.

    Args:
        rule: its name.
        key: of the log; the one that gave it first.
        step: the first step past the limit.
        limit: on the log's scale.
        lasting: whether the last logged value is past it, too, whichever key gives it; of hacking, whether it holds at the last
            evaluation.
        text: what it means, which setting to change, and the values.
        points: the steps and values of the key past the limit.
        change: whether training may be meant to do this.
    """

    rule: str
    key: str
    step: int
    limit: float
    lasting: bool
    text: str
    points: tuple[tuple[int, float], ...]
    change: bool = False


def find_alarms(curves: Mapping[str, Curve], *, floor: Mapping[str, float] | None = None) -> list[Alarm]:
    """The rules that a log broke, by the step at which they first were.

    Args:
        curves: key of the log -> values over steps; the first value is what later ones are compared to.
        floor: metric -> share of its first value that must be kept, such as a run's ``best_floor``; it replaces the rule of
            the same metric.
    """
    held: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in examine(_lines(curves), floor=floor):
        # Hacking has the key of its worst sign, which changes; the metrics of a floor have only the name in common.
        held.setdefault((verdict.name, verdict.key if verdict.name == FLOOR else ""), []).append(verdict)
    alarms = [_alarm(verdicts, curves) for verdicts in held.values()]
    return sorted(alarms, key=lambda alarm: alarm.step)


def held_against_nothing(curves: Mapping[str, Curve], *, floor: Mapping[str, float] | None = None) -> list[str]:
    """The warnings whose metric was measured, and that no evaluation so far can be compared with.

    Args:
        curves: as for ``find_alarms``.
        floor: as for ``find_alarms``.
    """
    examination = Examination(floor)
    for line in _lines(curves):
        examination.take(line)
    return examination.waiting


def _lines(curves: Mapping[str, Curve]) -> Iterator[dict[str, float]]:
    """The log that the curves were read from, one line per step."""
    lines: dict[int, dict[str, float]] = {}
    for key, curve in curves.items():
        for step, value in curve:
            lines.setdefault(step, {"step": step})[key] = value
    for step in sorted(lines):
        yield lines[step]


def _alarm(verdicts: Sequence[Verdict], curves: Mapping[str, Curve]) -> Alarm:
    one, column, curve = verdicts[0], describe_log(verdicts[0].key), curves[verdicts[0].key]
    end, last = curve[-1]
    values = [f"{column.text(one.first)} at step {one.began}"]
    values += [f"{column.text(one.value)} at step {one.step}"] if one.step != one.began else []
    values += [f"{column.text(last)} at the last, {end}"] if end not in (one.began, one.step) else []
    told = f"{one.says} {column.label}: {', '.join(values)}; the limit is {column.text(one.limit)}."
    if one.rose is not None:
        rising = describe_log(one.rose[0])
        told += f" Meanwhile {rising.label} rose from {rising.text(one.rose[1])} to {rising.text(one.rose[2])}."
    now = [verdict for verdict in verdicts if verdict.step == _last_look(verdict, curves)]
    if now and all(verdict.key != one.key for verdict in now):
        other = describe_log(now[0].key)
        told += f" At step {now[0].step} the sign is {other.label}: {other.text(now[0].value)}; the limit is "
        told += f"{other.text(now[0].limit)}."
    points = tuple((verdict.step, verdict.value) for verdict in verdicts if verdict.key == one.key)
    return Alarm(one.name, one.key, one.step, one.limit, bool(now), told, points, one.change)


def _last_look(verdict: Verdict, curves: Mapping[str, Curve]) -> int:
    """The last step at which the warning could hold: of hacking the last evaluation, whatever that measured."""
    if verdict.name == HACKING:
        return max(curve[-1][0] for key, curve in curves.items() if key.startswith(EVAL_PREFIX) and curve)
    return curves[verdict.key][-1][0]
