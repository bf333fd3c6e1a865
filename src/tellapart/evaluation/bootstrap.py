"""How much of a difference between two models the choice of test images explains."""

from __future__ import annotations

import numpy as np

BLOCK = 2_000_000
"""Resampled images held in memory at a time."""


def paired_bootstrap(
    a: np.ndarray, b: np.ndarray, *, samples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of ``b - a`` over images, and its percentile interval when the images are drawn again with replacement.

    Both models are resampled with the same images (Koehn, "Statistical significance tests for machine translation
    evaluation", EMNLP 2004), so what is hard for both cancels. The interval knows nothing of training seeds.

    Args:
        a: ``[n]`` or ``[n, m]``, one row an image, one column a metric.
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
    images = len(difference)
    generator = np.random.default_rng(seed)
    means = []
    for start in range(0, samples, block := max(1, BLOCK // images)):
        count = min(block, samples - start)
        drawn = generator.integers(images, size=(count, images)) + images * np.arange(count)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=count * images).reshape(count, images)
        means.append(weights @ difference / images)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(means), [tail, 100 - tail], axis=0)
    return difference.mean(axis=0), low, high
