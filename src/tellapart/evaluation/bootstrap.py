"""How much of a value, or of a difference between two models, the choice of test images explains."""

from __future__ import annotations

import numpy as np

BLOCK = 250_000
"""Resampled images held in memory at a time."""

ROUNDING = 1e-9
"""Differences below it, relative to the values, come from sums in another order."""


def resampled_sums(rows: np.ndarray, *, samples: int, seed: int = 0) -> np.ndarray:
    """The sums of rows drawn again with replacement, as many as there are; whole numbers stay exact.

    Args:
        rows: ``[n, m]``, one row per image; all columns share the draws.
        samples: how often the images are drawn again.
        seed: of the draws, which depend on it and n only, so that two models with equal n meet the same ones.

    Returns:
        ``[samples, m]``.
    """
    images = len(rows)
    generator = np.random.default_rng(seed)
    sums = np.empty((samples, rows.shape[1]))
    for start in range(0, samples, block := max(1, BLOCK // images)):
        count = min(block, samples - start)
        drawn = generator.integers(images, size=(count, images)) + images * np.arange(count)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=count * images).reshape(count, images)
        sums[start : start + count] = weights.astype(np.float64) @ rows
    return sums


def percentile_interval(draws: np.ndarray, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """``[m]`` lower and upper ends that leave equally many of the draws ``[samples, m]`` outside."""
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(draws, [tail, 100 - tail], axis=0)
    return low, high


def paired_bootstrap(
    a: np.ndarray, b: np.ndarray, *, samples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of ``b - a`` over images, and its percentile interval when the images are drawn again with replacement.

    Both models are resampled with the same images (Koehn, "Statistical significance tests for machine translation
    evaluation", EMNLP 2004), so what is hard for both cancels. The interval knows nothing of training seeds.

    Args:
        a: ``[n]`` or ``[n, m]``, one row per image, one column per metric.
        b: the other model's values of the same images in the same order.
        samples: how often the images are drawn again.
        seed: of the draws; all columns share them.
        confidence: share of the draws inside the interval.

    Returns:
        Difference, lower and upper end, each a scalar array or ``[m]``.

    Raises:
        ValueError: the shapes differ, or there are no images.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or not first.size:
        raise ValueError(f"paired values need equal shapes with at least one row, not {first.shape} and {second.shape}")
    difference = second - first
    sums = resampled_sums(difference.reshape(len(difference), -1), samples=samples, seed=seed)
    draws = (sums / len(difference)).reshape(samples, *difference.shape[1:])
    return difference.mean(axis=0), *percentile_interval(draws, confidence)


def p_values(draws: np.ndarray, *, rounding: np.ndarray | float = ROUNDING) -> np.ndarray:
    """Two-sided p-values of differences, from a paired bootstrap (after Koehn 2004).

    Koehn calls one model better if it is so in 95 % of the draws: one side, p = the share of draws in which it is not.
    Here a difference of either sign counts: p is twice the smaller of the shares of draws at or below 0 and at or above
    0, at most 1. Draw and observation count alike, so that p is never below 2 / (samples + 1).

    Args:
        draws: ``[samples, m]``, the difference under each draw of the images.
        rounding: differences below it count as none, ``[m]`` or of all columns.

    Returns:
        ``[m]``, NaN where a draw is not a number.
    """
    zero = rounding * np.maximum(np.abs(draws).max(axis=0), 1.0)
    below, above = (draws <= zero).sum(axis=0), (draws >= -zero).sum(axis=0)
    found = np.minimum(2.0 * (1 + np.minimum(below, above)) / (len(draws) + 1), 1.0)
    return np.where(np.isfinite(draws).all(axis=0), found, np.nan)
