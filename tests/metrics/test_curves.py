"""Reading curves: the published vector, the edges of a curve, curves that turn back, and Student's t from its table."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from given import vector
from tellapart.metrics.curves import crossings, interpolate, t_interval, t_quantile


def test_the_vector():
    inputs, expected, tolerance = vector("curve_interpolation")
    cider, recall = inputs["cider"], inputs["recall"]
    at_cider = interpolate(cider, recall, inputs["fixed_cider"])
    at_recall = interpolate(recall, cider, inputs["fixed_recall"])
    assert at_cider == pytest.approx(expected["recall_at_cider"], abs=tolerance, rel=0)
    assert at_recall == pytest.approx(expected["cider_at_recall"], abs=tolerance, rel=0)
    assert interpolate(cider, recall, inputs["fixed_cider_unreached"]) is None
    # by hand: 1.2 lies a third of the way from (1.18, 82) to (1.24, 75)
    assert at_cider == pytest.approx(82 - 7 / 3)


def test_nothing_is_extrapolated_and_points_are_met():
    x, y = [1.0, 2.0], [10.0, 30.0]
    assert interpolate(x, y, 1.0) == 10.0
    assert interpolate(x, y, 2.0) == 30.0
    assert interpolate(x, y, 0.999) is None
    assert interpolate(x, y, 2.001) is None
    assert interpolate([], [], 1.0) is None
    assert interpolate([1.0], [5.0], 1.0) == 5.0
    assert interpolate([1.0], [5.0], 1.1) is None


def test_points_of_one_x_count_as_one():
    assert interpolate([1.0, 1.0, 2.0], [0.0, 4.0, 10.0], 1.0) == 2.0
    assert interpolate([1.0, 1.0, 2.0], [0.0, 4.0, 10.0], 1.5) == pytest.approx(6.0)


def test_what_is_not_finite_is_left_out():
    x, y = [1.0, 2.0, 3.0, math.nan], [1.0, math.nan, 3.0, 2.0]
    assert interpolate(x, y, 2.0) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="zip"):
        interpolate([1.0], [1.0, 2.0], 1.0)


def test_a_curve_that_turns_back_is_told():
    # along the knob x goes 1, 3, 2: at 2.5 the path passes twice, at 10 * 0.25 + 30 * 0.75 and at (30 + 50) / 2
    x, y = [1.0, 3.0, 2.0], [10.0, 30.0, 50.0]
    assert crossings(x, y, 2.5) == pytest.approx([25.0, 40.0])
    assert interpolate(x, y, 2.5) == pytest.approx(40.0)  # neighbours in x are 2 and 3
    assert crossings(x, y, 1.0) == [10.0]
    assert crossings(x, y, 3.0) == [30.0]
    assert crossings(x, y, 4.0) == []
    rising = sorted(zip(x, y, strict=True))
    assert len(crossings(*zip(*rising, strict=True), 2.5)) == 1


numbers = st.floats(-100, 100).map(lambda value: round(value, 3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8, unique_by=lambda p: p[0]), numbers)
def test_it_agrees_with_numpy_inside_the_range(points, at):
    import numpy as np

    x, y = zip(*points, strict=True)
    value = interpolate(x, y, at)
    if not min(x) <= at <= max(x):
        assert value is None
        return
    order = np.argsort(x)
    assert value == pytest.approx(float(np.interp(at, np.array(x)[order], np.array(y)[order])), abs=1e-6)
    assert min(y) - 1e-9 <= value <= max(y) + 1e-9


@pytest.mark.parametrize(
    ("degrees", "confidence", "expected"),
    [
        (1, 0.95, 12.706),
        (2, 0.95, 4.303),
        (3, 0.95, 3.182),
        (4, 0.95, 2.776),
        (9, 0.95, 2.262),
        (5, 0.90, 2.015),
        (30, 0.99, 2.750),
        (100, 0.95, 1.984),
    ],
)
def test_student_as_in_printed_tables(degrees, confidence, expected):
    assert t_quantile(degrees, confidence) == pytest.approx(expected, abs=6e-4)


def test_interval_over_seeds():
    mean, half = t_interval([10.0, 12.0, 14.0])
    assert mean == 12.0
    assert half == pytest.approx(4.302653 * 2.0 / math.sqrt(3), rel=1e-6)  # standard deviation 2
    assert t_interval([7.0]) == (7.0, None)
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])
    with pytest.raises(ValueError, match="degrees"):
        t_quantile(0)
