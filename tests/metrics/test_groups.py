"""Accuracy among the look-alikes that people gave."""

import random

import pytest

from tellapart.metrics.groups import group_accuracy


def test_an_image_counts_as_told_apart_only_above_every_look_alike():
    found = group_accuracy([2.0, 1.0, 0.0, 5.0], [[0.5, 1.5], [3.0, 0.0], [], [5.0]])
    # told apart: the first. Pairs: 2 of 2, 1 of 2, 0 of 1 (a tie). The third has no look-alike.
    assert (found.groups, found.images) == (pytest.approx(100 / 3), 3)
    assert found.pairs == pytest.approx(100 * (1 + 0.5 + 0) / 3)
    assert found.chance == pytest.approx(100 * (1 / 3 + 1 / 3 + 1 / 2) / 3)


def test_random_scores_reach_chance():
    rng = random.Random(0)
    others = [[rng.random() for _ in range(rng.choice((1, 2, 3)))] for _ in range(20_000)]
    found = group_accuracy([rng.random() for _ in others], others)
    assert found.groups == pytest.approx(found.chance, abs=1.0)
    assert found.pairs == pytest.approx(50.0, abs=1.0)


def test_scores_without_look_alikes_are_refused():
    with pytest.raises(ValueError, match="no image has a look-alike"):
        group_accuracy([1.0], [[]])
    with pytest.raises(ValueError, match="zip"):
        group_accuracy([1.0, 2.0], [[0.0]])
