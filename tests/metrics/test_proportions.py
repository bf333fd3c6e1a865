"""Wilson's interval and the sign test: published values, and plain enumeration."""

from __future__ import annotations

from itertools import product

import pytest

from tellapart.metrics.proportions import sign_test, wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_that_of_newcombe_1998_table_1(successes, trials, low, high):
    """Newcombe, "Two-sided confidence intervals for the single proportion", method 3."""
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("successes", range(8))
def test_the_ends_solve_the_score_equation(successes):
    """At an end p, the distance of the observed share is 1.96 standard errors of p itself."""
    n, z = 7, 1.959963984540054
    low, high = wilson_interval(successes, n)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(successes / n - end) == pytest.approx(z * (end * (1 - end) / n) ** 0.5)
    assert (low == 0.0) == (successes == 0)
    assert (high == 1.0) == (successes == n)
    mirrored = wilson_interval(n - successes, n)
    assert mirrored == pytest.approx((1 - high, 1 - low))


def test_what_is_no_share_is_refused():
    for successes, trials, confidence in ((1, 0, 0.95), (3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0)):
        with pytest.raises(ValueError, match="not a share"):
            wilson_interval(successes, trials, confidence)


@pytest.mark.parametrize(("wins", "losses"), [(0, 1), (1, 1), (3, 1), (2, 6), (0, 9), (5, 5)])
def test_the_sign_test_counts_every_outcome(wins, losses):
    trials = wins + losses
    outcomes = [sum(outcome) for outcome in product((0, 1), repeat=trials)]
    as_uneven = sum(abs(2 * heads - trials) >= abs(wins - losses) for heads in outcomes)
    assert sign_test(wins, losses) == pytest.approx(as_uneven / 2**trials)
    assert sign_test(losses, wins) == sign_test(wins, losses)


def test_the_sign_test_of_nothing_and_of_very_much():
    assert sign_test(0, 0) == 1.0
    assert sign_test(1500, 1700) == pytest.approx(0.000435, abs=3e-5)  # normal approximation with continuity correction
    with pytest.raises(ValueError, match="cannot be counted"):
        sign_test(-1, 2)
