"""The tensor functions against vectors and slow plain-Python sums."""

import math

import pytest
import torch
from hypothesis import given as cases
from hypothesis import strategies as st

from given import GivenCaptioner, double, images, run, vector
from tellapart.objectives.xe import XE
from tellapart.ops import first_eos_mask, group_mean, group_std, kl_k3, leave_one_out_mean, reduce, sequence_logprob


def test_sequence_logprob_first_eos():
    inputs, expected, tolerance = vector("sequence_logprob_first_eos")
    sequences = torch.tensor(inputs["sequences"])
    chosen = sequences[:, 1:]
    mask, finished = first_eos_mask(chosen, [inputs["eos_id"]])
    assert mask.double().tolist() == expected["mask"]
    assert finished.double().tolist() == expected["finished"]
    logprobs = double(inputs["logits"]).log_softmax(dim=-1).gather(2, chosen[:, :, None]).squeeze(2)
    total = sequence_logprob(logprobs, mask)
    torch.testing.assert_close(total, double(expected["seq_logp"]), atol=tolerance, rtol=0)
    torch.testing.assert_close(total / mask.sum(1), double(expected["seq_mean_logp"]), atol=tolerance, rtol=0)
    loss, _, _ = run(XE(GivenCaptioner(logprobs, mask, torch.arange(4))), images(4))
    assert loss == pytest.approx(expected["xe_token_mean"], abs=tolerance)


def test_first_eos_mask_knows_several_eos_ids():
    mask, finished = first_eos_mask(torch.tensor([[5, 7, 2, 0], [5, 6, 6, 6]]), [0, 2])
    assert mask.tolist() == [[True, True, True, False], [True, True, True, True]]
    assert finished.tolist() == [True, False]


ROWS = st.lists(st.lists(st.floats(-3, 0), min_size=1, max_size=5), min_size=1, max_size=6)


@cases(ROWS)
def test_reductions_equal_plain_sums(rows):
    width = max(map(len, rows))
    values = double([row + [-9.0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    total = sum(map(sum, rows))
    expected = {
        "token_mean": total / sum(map(len, rows)),
        "seq_sum": total / len(rows),
        "seq_mean": sum(sum(row) / len(row) for row in rows) / len(rows),
    }
    for name, value in expected.items():
        loss, weight = reduce(values, mask, name)
        assert float(loss / weight) == pytest.approx(value, abs=1e-12)


@cases(st.lists(st.tuples(st.integers(0, 3), st.floats(-2, 2)), min_size=1, max_size=12))
def test_group_statistics_equal_plain_loops(rows):
    group, values = torch.tensor([g for g, _ in rows]), double([v for _, v in rows])
    mean, others, std = group_mean(values, group), leave_one_out_mean(values, group), group_std(values, group)
    for i, (g, value) in enumerate(rows):
        same = [v for h, v in rows if h == g]
        rest = [v for j, (h, v) in enumerate(rows) if h == g and j != i]
        average = sum(same) / len(same)
        assert float(mean[i]) == pytest.approx(average, abs=1e-12)
        assert float(others[i]) == pytest.approx(sum(rest) / len(rest) if rest else value, abs=1e-12)
        variance = sum((v - average) ** 2 for v in same) / (len(same) - 1) if len(same) > 1 else 0.0
        assert float(std[i]) == pytest.approx(math.sqrt(variance), abs=1e-9)


def test_k3_is_never_negative_and_zero_at_the_reference():
    logprobs = torch.linspace(-5, 0, 11, dtype=torch.float64)
    everything = torch.ones_like(logprobs, dtype=torch.bool)
    assert (kl_k3(logprobs, logprobs.flip(0), everything) >= 0).all()
    assert kl_k3(logprobs, logprobs, everything).abs().max() == 0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_k3_reads_nothing_of_padding(value):
    logprobs = torch.full((1, 2), -1.0, requires_grad=True)
    found = kl_k3(logprobs, torch.tensor([[-2.0, value]]), torch.tensor([[True, False]]))
    found.sum().backward()
    assert found[0].tolist() == [pytest.approx(math.exp(-1)), 0.0]  # exp(d) - d - 1 of d = -1
    assert logprobs.grad[0].tolist() == [pytest.approx(1 - math.exp(-1)), 0.0]


@cases(st.floats(-3, 3, width=32), st.integers(1, 9))
def test_equal_values_have_neither_deviation_nor_advantage(value, count):
    values = torch.tensor([value] * count + [1.0, 2.0])
    group = torch.tensor([1] * count + [0, 0])
    assert group_std(values, group)[:count].tolist() == [0.0] * count
    assert group_mean(values, group)[:count].tolist() == values[:count].tolist()
    assert leave_one_out_mean(values, group)[:count].tolist() == values[:count].tolist()
