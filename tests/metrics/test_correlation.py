"""Rank correlations against their definitions, pair by pair, with groups drawn again written out."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from tellapart.metrics.correlation import kendall, kendall_tau_b, kendall_tau_c, pair_sums, pearson, spearman

RNG = np.random.default_rng(0)
GROUPS = np.array([1, 0, 2, 1, 0, 3, 3, 2, 1, 0, 3, 2, 2])
SCORES = RNG.integers(0, 6, size=13).astype(float)
TRUTH = np.round(SCORES / 3 + RNG.normal(size=13))
DRAWS = np.array([[1, 1, 1, 1], [2, 0, 1, 1], [0, 3, 0, 1], [1, 0, 0, 3]])


def written_out(draw) -> list[tuple[float, float, tuple[int, int]]]:
    """Every drawn item: score, truth, and the copy of the group that it is of."""
    return [
        (SCORES[i], TRUTH[i], (group, copy))
        for group, times in enumerate(draw)
        for copy in range(times)
        for i in range(len(GROUPS))
        if GROUPS[i] == group
    ]


def counts(items, *, within=False) -> tuple[int, int, int, int]:
    """Pairs that agree, that disagree, with different scores, with different truths."""
    pairs = [(a, b) for a, b in combinations(items, 2) if not within or a[2] == b[2]]
    products = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in pairs]
    agree, disagree = sum(p > 0 for p in products), sum(p < 0 for p in products)
    return agree, disagree, sum(a[0] != b[0] for a, b in pairs), sum(a[1] != b[1] for a, b in pairs)


@pytest.mark.parametrize("within", [False, True])
def test_tau_b_counts_pairs(within):
    found = kendall_tau_b(pair_sums(SCORES, TRUTH, GROUPS), DRAWS, within=within)
    for draw, value in zip(DRAWS, found, strict=True):
        agree, disagree, scored, true = counts(written_out(draw), within=within)
        assert value == pytest.approx((agree - disagree) / math.sqrt(scored * true))
    assert len(set(found)) == len(DRAWS)


def test_tau_c_counts_pairs():
    sums = pair_sums(SCORES, TRUTH, GROUPS)
    levels = min(len(set(SCORES)), len(set(TRUTH)))
    found = kendall_tau_c(sums, DRAWS)
    for draw, value in zip(DRAWS, found, strict=True):
        items = written_out(draw)
        agree, disagree, _, _ = counts(items)
        assert value == pytest.approx(2 * (agree - disagree) / (len(items) ** 2 * (levels - 1) / levels))
    assert kendall_tau_c(sums)[0] == found[0]


def test_rho_correlates_mean_ranks():
    found = spearman(SCORES, TRUTH, GROUPS, DRAWS)
    for draw, value in zip(DRAWS, found, strict=True):
        items = written_out(draw)
        ranks = []
        for place in (0, 1):
            column = [item[place] for item in items]
            ranks.append([sum(b < a for b in column) + (sum(b == a for b in column) + 1) / 2 for a in column])
        assert value == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert spearman(SCORES, TRUTH, GROUPS)[0] == pytest.approx(found[0])


def test_the_ends_of_the_scale():
    line, groups = np.arange(6.0), np.array([0, 0, 1, 1, 2, 2])
    for sign in (1, -1):
        sums = pair_sums(sign * line**3, line, groups)
        assert [float(of(sums)[0]) for of in (kendall_tau_b, kendall_tau_c)] == pytest.approx([sign, sign])
        assert spearman(sign * line**3, line, groups)[0] == pytest.approx(sign)
    # Kendall's example of a judge who ties everything says nothing.
    sums = pair_sums(np.zeros(6), line, groups)
    assert math.isnan(kendall_tau_b(sums)[0])
    assert math.isnan(spearman(np.zeros(6), line, groups)[0])


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="group 1 holds no item"):
        pair_sums(SCORES[:3], TRUTH[:3], np.array([0, 2, 2]))
    with pytest.raises(ValueError, match="one length of at least 2"):
        pair_sums(SCORES[:1], TRUTH[:1], GROUPS[:1])


def test_spearman_of_plain_pairs():
    # ranks 1 2 3 4 5 and 2 1 4 3 5 differ by 1 four times: 1 - 6 * 4 / (5 * 24)
    assert rho([1, 2, 3, 4, 5], [0.2, 0.1, 7.0, 3.0, 9.0]) == pytest.approx(0.8)
    assert rho([0.05, 0.1, 0.2, 0.5], [9.0, 8.0, 1.0, -5.0]) == pytest.approx(-1.0)
    # ranks 1 2.5 2.5 4 against 1 2 3 4: covariance 4.5 over the root of 4.5 * 5
    assert rho([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert np.isnan(rho([1, 2, 3], [5.0, 5.0, 5.0]))
    assert np.isnan(rho([1], [1]))


def rho(x, y):
    return spearman(np.array(x), np.array(y))[0]


@pytest.mark.parametrize("seed", range(4))
def test_all_items_as_one_group_in_less_time(seed):
    """The same coefficients as from all pairs, whichever of the two is the coarser one."""
    rng = np.random.default_rng(seed)
    fine, coarse = np.round(rng.normal(size=60), 1), rng.integers(1, 5, size=60).astype(float)
    for scores, truth in ((fine, coarse), (coarse, fine)):
        sums = pair_sums(scores, truth, np.zeros(60, np.int64))
        expected = kendall_tau_b(sums)[0], kendall_tau_c(sums)[0]
        assert kendall(scores, truth) == pytest.approx(expected, abs=1e-12)
    assert pearson(fine, coarse) == pytest.approx(np.corrcoef(fine, coarse)[0, 1], abs=1e-12)


def test_constant_scores_correlate_with_nothing():
    same, truth = np.ones(5), np.arange(5.0)
    assert all(math.isnan(value) for value in (*kendall(same, truth), *kendall(truth, same), pearson(same, truth)))


def test_kendall_needs_pairs():
    with pytest.raises(ValueError, match="at least 2"):
        kendall(np.ones(1), np.ones(1))
