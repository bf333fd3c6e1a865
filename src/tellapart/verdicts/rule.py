"""What a rule is: a key, a limit, and the logged value that later ones are held against."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Logged: TypeAlias = tuple[int, float]
"""A step, and what was logged at it."""


def from_first(first: Logged | None, spoken: Logged | None) -> Logged | None:
    """The first logged value, of evaluations that of step 0.

    Args:
        first: that value.
        spoken: the value of the first evaluation of a captioner that speaks; none before it.
    """
    return first


def from_spoken(first: Logged | None, spoken: Logged | None) -> Logged | None:
    """The first evaluation of a captioner that speaks: for what learning to speak makes worse, or babble has the worst of.

    Args:
        first: see :func:`from_first`.
        spoken: see :func:`from_first`.
    """
    return spoken


def from_higher(first: Logged | None, spoken: Logged | None) -> Logged | None:
    """The higher of the two: for what babble has little of, so that what step 0 had counts and what was learned does, too.

    Args:
        first: see :func:`from_first`.
        spoken: see :func:`from_first`.
    """
    return max((one for one in (first, spoken) if one), key=lambda one: one[1], default=None)


@dataclass(frozen=True)
class Rule:
    """A limit that a logged value must not pass.

    Args:
        name: short; what a program asks for. Rules of one name are one verdict that several keys can give.
        key: of the log.
        limit: the value at the start -> the limit, both on the log's scale.
        above: whether the values above the limit are the wrong ones.
        says: what it means and which setting to change, for a reader who does not know the metric.
        start: which value it is held against: :func:`from_first`, :func:`from_spoken` or :func:`from_higher`.
        absolute: whether the first value can be wrong already, since the limit does not follow it (everywhere).
        looks: logged values in a row that must be wrong before it is told; single steps of training are noisy.
        rises: a key that must be above its own start meanwhile.
        size: whether the sign of the value does not matter.
        measured_by: the setting that has the key measured, where not every evaluation does.
        change: whether training may be meant to do this, so that it is told in reports and not warned of.
    """

    name: str
    key: str
    limit: Callable[[float], float]
    above: bool
    says: str
    start: Callable[[Logged | None, Logged | None], Logged | None] = from_first
    absolute: bool = False
    looks: int = 1
    rises: str | None = None
    size: bool = False
    measured_by: str = ""
    change: bool = False

    def wrong(self, value: float, limit: float) -> bool:
        """Whether ``value`` is past the limit."""
        value = abs(value) if self.size else value
        return value > limit if self.above else value < limit


def share(part: float) -> Callable[[float], float]:
    """A limit at ``part`` of the value at the start."""
    return lambda first: part * first


def plus(points: float, most: float = math.inf) -> Callable[[float], float]:
    """A limit ``points`` above (below 0: below) the value at the start, and never above ``most``."""
    return lambda first: min(first + points, most)


def at(value: float) -> Callable[[float], float]:
    """The same limit for every start."""
    return lambda first: value
