"""Curves of trade-off: reading one metric where another is fixed, and how much seeds differ. Numbers only, no models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter


def interpolate(x: Sequence[float], y: Sequence[float], at: float) -> float | None:
    """The value of ``y`` where ``x`` is ``at``, on a line between the two neighbours of ``at``.

    So "recall at fixed CIDEr" and "CIDEr at fixed recall" are read off in the tables of PSST (Vered, Oren, Atzmon & Chechik,
    ICCV 2019): each value of a knob gives a model and a point, values between are on a line, and what is not
    enclosed by points is unreached, never extrapolated. Neighbours are next to one another *in x*, whatever the knob, so that
    a curve that turns back is read as its points lie in the picture; points with the same ``x`` count as one, with their mean
    ``y``. ``crossings`` tells whether the curve passes ``at`` more than once.

    Args:
        x: ``[n]``, the fixed metric of each point, in any order.
        y: ``[n]``, the metric to read. A point where either is not finite is left out.
        at: the value of ``x`` to read at.

    Returns:
        The value, or None where no two points (nor one exactly at it) enclose ``at``: unreached.

    Raises:
        ValueError: ``x`` and ``y`` differ in length.
    """
    points = _merged(_finite(x, y))
    for here, value in points:
        if here == at:
            return value
    for (left, low), (right, high) in pairwise(points):
        if left < at < right:
            return low + (high - low) * (at - left) / (right - left)
    return None


def crossings(x: Sequence[float], y: Sequence[float], at: float) -> list[float]:
    """The values of ``y`` at every place where the path through the points, *in the order given*, passes ``x = at``.

    One value means that the curve is read without ambiguity there; several, that it turns back and that
    ``interpolate`` had to choose the neighbours in ``x``.

    Args:
        x: ``[n]``, in the order of the knob.
        y: ``[n]``; a point where either is not finite is left out.
        at: the value of ``x``.

    Raises:
        ValueError: ``x`` and ``y`` differ in length.
    """
    points = _finite(x, y)
    found = [value for here, value in points[:1] if here == at]
    for (left, low), (right, high) in pairwise(points):
        if right == at:
            found.append(high)
        elif min(left, right) < at < max(left, right):
            found.append(low + (high - low) * (at - left) / (right - left))
    return found


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float | None]:
    """Mean over seeds and half the width of its Student-t interval: ``t * sd / sqrt(n)``, n - 1 degrees of freedom.

    Args:
        values: ``[n]``, one per seed, n >= 1.
        confidence: of the interval, two-sided.

    Returns:
        ``(mean, half width)``; None where a single value gives no spread.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("an interval over seeds needs at least one value")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    return mean, t_quantile(len(values) - 1, confidence) * statistics.stdev(values) / math.sqrt(len(values))


def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """The t beyond which Student's distribution has ``1 - confidence`` in both tails together.

    Args:
        degrees: of freedom, at least 1.
        confidence: above 0 and below 1.

    Raises:
        ValueError: an argument is out of its range.
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no t quantile for {degrees} degrees of freedom and confidence {confidence}")
    low, high = 0.0, math.pi / 2
    for _ in range(80):  # bisection in the angle, where the whole half-line is a finite range
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _within(angle: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) tan(angle)): Abramowitz & Stegun, 26.7.3 (odd degrees) and 26.7.4 (even)."""
    sine, cosine, odd = math.sin(angle), math.cos(angle), degrees % 2
    term = cosine if odd else 1.0
    total = 0.0 if degrees == 1 else term
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _finite(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    return [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]


def _merged(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """By rising x, each x once."""
    groups = groupby(sorted(points), key=itemgetter(0))
    return [(x, statistics.fmean(y for _, y in group)) for x, group in groups]
