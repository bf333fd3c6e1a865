"""Shares of outcomes with two sides: an interval, and a test against even odds."""

from __future__ import annotations

from math import comb, sqrt
from statistics import NormalDist


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The score interval of a binomial share (Wilson, "Probable inference, the law of succession, and statistical
    inference", JASA 22, 1927).

    With ``z`` the normal quantile, its ends are ``(k + z²/2 ± z sqrt(k (n - k) / n + z²/4)) / (n + z²)``. Unlike
    ``p ± z sqrt(p (1 - p) / n)`` it never leaves 0 to 1 and has a width at shares of 0 and 1. The trials must not depend on
    one another.

    Args:
        successes: k, 0 to ``trials``.
        trials: n, at least 1.
        confidence: share of such intervals that hold the true share.

    Returns:
        Lower and upper end, fractions.

    Raises:
        ValueError: the counts do not fit, or the confidence is not between 0 and 1.
    """
    if not 0 <= successes <= trials or not trials or not 0 < confidence < 1:
        raise ValueError(f"{successes} of {trials} at confidence {confidence} is not a share of trials")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = successes + z * z / 2
    half = z * sqrt(successes * (trials - successes) / trials + z * z / 4)
    low, high = (centre - half) / (trials + z * z), (centre + half) / (trials + z * z)
    return (low if successes else 0.0, high if successes < trials else 1.0)  # exact where the sums round


def sign_test(wins: int, losses: int) -> float:
    """The exact two-sided p-value of ``wins`` against ``losses`` if both were equally likely (Dixon and Mood, "The
    statistical sign test", JASA 41, 1946).

    Ties are left out before. p is twice the chance of a split at least as uneven to that side, at most 1; 1 without any
    trial. On pairs of which one side alone succeeded this is McNemar's exact test.

    Raises:
        ValueError: a count is negative.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"{wins} wins and {losses} losses cannot be counted")
    trials = wins + losses
    tail = sum(comb(trials, count) for count in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**trials)
