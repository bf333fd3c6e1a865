"""The paired bootstrap against a plain loop, against theory, and at its edges."""

import math
import statistics

import numpy as np
import pytest

from tellapart.evaluation import bootstrap
from tellapart.evaluation.bootstrap import paired_bootstrap


def test_equals_a_plain_python_loop():
    rng = np.random.default_rng(1)
    a, b = rng.random(23), rng.random(23) + 0.1
    difference, low, high = paired_bootstrap(a, b, samples=200, seed=5, confidence=0.9)

    draws = np.random.default_rng(5).integers(23, size=(200, 23)).tolist()
    gaps = [y - x for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    means = sorted(sum(gaps[i] for i in row) / 23 for row in draws)

    def quantile(q: float) -> float:  # linear between order statistics
        place = q * (len(means) - 1)
        below = math.floor(place)
        above = min(below + 1, len(means) - 1)
        return means[below] + (place - below) * (means[above] - means[below])

    assert float(difference) == pytest.approx(sum(gaps) / 23)
    assert float(low) == pytest.approx(quantile(0.05))
    assert float(high) == pytest.approx(quantile(0.95))


def test_interval_has_the_width_theory_predicts():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal(400), rng.standard_normal(400)
    difference, low, high = paired_bootstrap(a, b, samples=4000)
    error = statistics.stdev((b - a).tolist()) / math.sqrt(400)
    assert float(low) == pytest.approx(float(difference) - 1.96 * error, abs=0.1 * error)
    assert float(high) == pytest.approx(float(difference) + 1.96 * error, abs=0.1 * error)


def test_what_is_hard_for_both_cancels():
    hard = np.random.default_rng(3).standard_normal(50) * 100
    difference, low, high = paired_bootstrap(hard, hard + 0.25)
    assert [float(difference), float(low), float(high)] == pytest.approx([0.25, 0.25, 0.25])


def test_columns_share_their_draws():
    rng = np.random.default_rng(4)
    a, b = rng.random((30, 3)), rng.random((30, 3))
    together = np.stack(paired_bootstrap(a, b, samples=100, seed=9))
    for column in range(3):
        alone = np.stack(paired_bootstrap(a[:, column], b[:, column], samples=100, seed=9))
        np.testing.assert_allclose(together[:, column], alone)


def test_memory_blocks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(6)
    a, b = rng.random(40), rng.random(40)
    whole = paired_bootstrap(a, b, samples=50)
    monkeypatch.setattr(bootstrap, "BLOCK", 7 * 40)
    np.testing.assert_allclose(np.stack(paired_bootstrap(a, b, samples=50)), np.stack(whole))


@pytest.mark.parametrize(("a", "b"), [([1.0, 2.0], [1.0]), ([], [])])
def test_unpaired_or_no_values_are_refused(a, b):
    with pytest.raises(ValueError, match="equal shapes"):
        paired_bootstrap(np.array(a), np.array(b))
