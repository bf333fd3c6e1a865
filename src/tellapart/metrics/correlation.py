"""Rank correlation of scores with a truth over items that come in groups, and over groups drawn again.

Captions come several to an image, and it is images that a bootstrap draws again. Kendall's coefficients count pairs of items,
so over drawn images they are quadratic forms of how often each image was drawn: the pairs are counted once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PairSums:
    """Ordered pairs of items, summed by the groups of the two; all ``[G, G]``.

    Args:
        agree: pairs in the same order minus pairs in opposite orders.
        scored: pairs whose scores differ.
        true: pairs whose truths differ.
        sizes: ``[G]`` items of each group.
        levels: the smaller one of the numbers of different scores and of different truths among all items.
    """

    agree: np.ndarray
    scored: np.ndarray
    true: np.ndarray
    sizes: np.ndarray
    levels: int


def pair_sums(scores: np.ndarray, truth: np.ndarray, groups: np.ndarray) -> PairSums:
    """Count the pairs; it takes time in the square of the number of items.

    Args:
        scores: ``[N]``.
        truth: ``[N]``.
        groups: ``[N]`` which of the groups 0 to G - 1 an item is of; none may be empty.

    Raises:
        ValueError: the shapes differ, there are fewer than two items, or a group is empty.
    """
    if not scores.shape == truth.shape == groups.shape or len(scores) < 2:
        raise ValueError(f"scores, truths and groups need one length of at least 2, not {scores.shape}, {truth.shape}")
    sizes = np.bincount(groups)
    if not sizes.all():
        raise ValueError(f"group {int(np.argmin(sizes))} holds no item")
    order = np.argsort(groups, kind="stable")
    values = [np.unique(column, return_inverse=True) for column in (scores, truth)]
    x, y = (rank[order].astype(np.int32) for _, rank in values)
    starts = np.cumsum(sizes) - sizes
    sums = np.empty((3, len(sizes), len(sizes)))
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        own = slice(start, start + size)
        first, second = (np.sign(column[own, None] - column[None, :]) for column in (x, y))
        for kind, pairs in enumerate((first * second, first != 0, second != 0)):
            sums[kind, group] = np.add.reduceat(pairs.sum(axis=0), starts)
    return PairSums(sums[0], sums[1], sums[2], sizes, min(len(distinct) for distinct, _ in values))


def kendall_tau_b(sums: PairSums, draws: np.ndarray | None = None, *, within: bool = False) -> np.ndarray:
    """``[S]`` Kendall's tau-b, -1 to 1, corrected for ties in both (Kendall, "The treatment of ties in ranking problems", 1945).

    Args:
        sums: the pairs.
        draws: ``[S, G]`` how often each group was drawn; by default each once, so that S is 1.
        within: count pairs of items of one group only.

    Returns:
        Not a number where all scores, or all truths, are equal.
    """
    agree, scored, true = (_total(part, draws, within=within) for part in (sums.agree, sums.scored, sums.true))
    scale = np.sqrt(scored * true)
    return np.divide(agree, scale, out=np.full_like(agree, np.nan), where=scale > 0)


def kendall_tau_c(sums: PairSums, draws: np.ndarray | None = None) -> np.ndarray:
    """``[S]`` Stuart's tau-c, for tables with unlike numbers of rows and columns (Stuart, "The estimation and comparison of
    strengths of association in contingency tables", 1953); arguments as for ``kendall_tau_b``.

    Its m is ``sums.levels`` in every draw.
    """
    drawn = np.ones((1, len(sums.sizes))) if draws is None else draws
    items = drawn @ sums.sizes
    agree, levels = _total(sums.agree, draws, within=False), sums.levels
    return agree * levels / (items**2 * (levels - 1)) if levels > 1 else np.full_like(agree, np.nan)


def spearman(
    scores: np.ndarray, truth: np.ndarray, groups: np.ndarray | None = None, draws: np.ndarray | None = None
) -> np.ndarray:
    """``[S]`` Spearman's rho, -1 to 1: Pearson's correlation of ranks, equal values having the mean of theirs; NaN where either
    has fewer than two different values.

    Args:
        scores: ``[N]``.
        truth: ``[N]``.
        groups: ``[N]`` group of each item; by default each is one.
        draws: ``[S, G]`` how often each group was drawn; by default each once.
    """
    groups = np.arange(len(scores)) if groups is None else groups
    inverses = [np.unique(column, return_inverse=True)[1] for column in (scores, truth)]
    found = []
    for drawn in np.ones((1, int(groups.max()) + 1)) if draws is None else draws:
        weights = drawn[groups]
        x, y = (_centred_ranks(inverse, weights) for inverse in inverses)
        scale = np.sqrt((weights @ x**2) * (weights @ y**2))
        found.append((weights * x) @ y / scale if scale > 0 else np.nan)
    return np.array(found)


def kendall(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Kendall's tau-b and Stuart's tau-c of all items as one group, both -1 to 1; not a number where all values of one are equal.

    Equal to ``kendall_tau_b`` and ``kendall_tau_c``, in time N log N times the number of different values of the
    coarser one: ratings of people have few.

    Args:
        scores: ``[N]``.
        truth: ``[N]``.

    Raises:
        ValueError: the shapes differ, or there are fewer than two items.

    Example:
        >>> kendall(np.array([0.1, 0.4, 0.9]), np.array([1, 1, 4]))
        (0.8164965809277261, 0.8888888888888888)
    """
    if scores.shape != truth.shape or len(scores) < 2:
        raise ValueError(f"scores and truths need one length of at least 2, not {scores.shape}, {truth.shape}")
    ranks = [np.unique(column, return_inverse=True)[1] for column in (scores, truth)]
    fine, coarse = sorted(ranks, key=lambda column: int(column.max()), reverse=True)
    agree, levels = 0, int(coarse.max()) + 1
    below = np.zeros(0, fine.dtype)  # items of the levels before, sorted
    for level in range(levels):
        own = fine[coarse == level]
        right = np.searchsorted(below, own, side="left").sum()
        wrong = len(below) * len(own) - np.searchsorted(below, own, side="right").sum()
        agree += int(right) - int(wrong)
        below = np.sort(np.concatenate([below, own]))
    n = len(scores)
    differ = [n * (n - 1) // 2 - sum(count * (count - 1) // 2 for count in np.bincount(c).tolist()) for c in ranks]
    if not all(differ):
        return float("nan"), float("nan")
    return agree / math.sqrt(differ[0] * differ[1]), 2 * agree * levels / (n**2 * (levels - 1))


def pearson(scores: np.ndarray, truth: np.ndarray) -> float:
    """Pearson's r, -1 to 1; not a number where all scores, or all truths, are equal."""
    x, y = (np.asarray(column, np.float64) - np.mean(column) for column in (scores, truth))
    scale = math.sqrt((x @ x) * (y @ y))
    return float(x @ y) / scale if scale > 0 else float("nan")


def _centred_ranks(inverse: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """``[N]`` mean rank of each item's value when item i is there ``weights[i]`` times, less the mean of all."""
    counts = np.bincount(inverse, weights)
    ranks = (np.cumsum(counts) - counts / 2)[inverse]
    return ranks - weights @ ranks / weights.sum()


def _total(part: np.ndarray, draws: np.ndarray | None, *, within: bool) -> np.ndarray:
    """``[S]``: the pairs of drawn groups."""
    drawn = np.ones((1, len(part))) if draws is None else np.asarray(draws, dtype=np.float64)
    if within:
        return drawn @ part.diagonal()
    return ((drawn @ part) * drawn).sum(axis=1)
