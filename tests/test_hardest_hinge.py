"""The hinge of the hardest negatives against the vector and a plain double loop."""

import pytest
import torch
from hypothesis import given as cases
from hypothesis import strategies as st

from given import double, vector
from tellapart.errors import UsageError
from tellapart.ops import hardest_hinge


def slow(similarities, margin, same=lambda i, j: i == j) -> list[float]:
    count, costs = len(similarities), []
    for i in range(count):
        cost = 0.0
        for rivals in (similarities[i], [row[i] for row in similarities]):
            best = max((rivals[j] for j in range(count) if not same(i, j)), default=float("-inf"))
            cost += max(0.0, margin - similarities[i][i] + best)
        costs.append(cost)
    return costs


def test_disc_hinge_hardest():
    inputs, expected, tolerance = vector("disc_hinge_hardest")
    similarities = double(inputs["sim_image_by_caption"])
    for margin in inputs["margins"]:
        costs = hardest_hinge(similarities, margin)
        torch.testing.assert_close(costs, double(expected[f"per_sample_m{margin}"]), atol=tolerance, rtol=0)
        assert float(costs.sum()) == pytest.approx(expected[f"sum_m{margin}"], abs=tolerance)
        assert float(costs.mean()) == pytest.approx(expected[f"mean_m{margin}"], abs=tolerance)
    # rows are images: of the transposed matrix the two terms change places, their sum does not
    assert float(hardest_hinge(similarities).sum()) == pytest.approx(expected["sum_m0.2"], abs=tolerance)


@cases(st.integers(2, 6), st.integers(0, 10_000), st.sampled_from([0.2, 1.0]), st.integers(1, 3))
def test_against_a_double_loop(count, seed, margin, kinds):
    generator = torch.Generator().manual_seed(seed)
    similarities = 2 * torch.rand(count, count, generator=generator).double() - 1
    torch.testing.assert_close(hardest_hinge(similarities, margin), double(slow(similarities.tolist(), margin)))
    kind = torch.randint(kinds, (count,), generator=generator)
    expected = slow(similarities.tolist(), margin, same=lambda i, j: kind[i] == kind[j])
    found = hardest_hinge(similarities, margin, same=kind[:, None] == kind[None, :])
    torch.testing.assert_close(found, double(expected))


def test_gradients_pull_the_pair_and_push_the_hardest_only():
    similarities = double([[0.6, 0.3, 0.5], [0.2, 0.4, 0.45], [0.1, 0.35, 0.9]]).requires_grad_()
    hardest_hinge(similarities, 0.2).sum().backward()
    # Image 0 is too near caption 2, image 1 to caption 2, and caption 1 to image 2; the rest is apart by the margin.
    assert similarities.grad.tolist() == [[-1, 0, 1], [0, -2, 1], [0, 1, 0]]


def test_nothing_is_compared_where_all_are_the_same():
    similarities = torch.zeros(3, 3, requires_grad=True)
    costs = hardest_hinge(similarities, same=torch.ones(3, 3, dtype=torch.bool))
    costs.sum().backward()
    assert costs.tolist() == [0, 0, 0]
    assert similarities.grad.abs().max() == 0


def test_one_image_cannot_be_compared():
    with pytest.raises(UsageError, match=r"but it has 1 in all: set per_device_train_batch_size to 2 or more\."):
        hardest_hinge(torch.ones(1, 1))
