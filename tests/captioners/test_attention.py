"""Attention of a step by products: torch's attention, a plain computation, and nothing written to what is given."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tellapart.captioners import attention
from tellapart.captioners.attention import SMALLEST, attend_in_step

SHAPES = [(3, 2, 1, 13, 32), (2, 4, 5, 9, 16), (4, 1, 5, 20, 32), (1, 1, 1, 60, 8)]
"""Groups, heads, queries, columns and width; some of one head or one group, where a mask spread over heads is no copy."""


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def drawn(groups, heads, size, columns, width):
    """Queries, keys and values as they lie while captions are drawn: word by word, with room for more."""
    query = torch.randn(groups, size, 3, heads, width).permute(0, 2, 3, 1, 4)[:, 0]
    keys, values = torch.randn(2, columns + 7, groups, heads, width).permute(0, 2, 3, 1, 4)[:, :, :, :columns]
    return query, keys, values


def mask_of(groups, rows, columns):
    seen = torch.rand(groups, 1, rows, columns) < 0.5
    seen[..., 0] = True
    return torch.zeros(seen.shape).masked_fill(~seen, -math.inf)


def refuse(*_, **__):
    raise AssertionError("torch's attention was asked")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", ["not", "each row", "all rows alike"])
def test_it_is_torchs_attention_and_leaves_the_mask_as_it_was(shape, masked, monkeypatch):
    groups, _, size, columns, width = shape
    assert size * columns * width >= SMALLEST
    query, keys, values = drawn(*shape)
    seen = None if masked == "not" else mask_of(groups, size if masked == "each row" else 1, columns)
    before = None if seen is None else seen.clone()
    expected = scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=0.3)
    monkeypatch.setattr(attention, "scaled_dot_product_attention", refuse)
    with torch.no_grad():
        found = attend_in_step(query, keys, values, seen, 0.3)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    assert seen is None or torch.equal(seen, before)


def test_one_number_by_hand():
    query, keys = torch.tensor([1.0, 0.0] * 10), torch.zeros(20, 20)
    keys[3, 0] = 4.0
    values = torch.arange(20.0)[:, None].expand(20, 20).contiguous()
    with torch.no_grad():
        found = attend_in_step(query.view(1, 1, 1, 20), keys[None, None], values[None, None], None, 0.5)
    high = math.exp(0.5 * 4)  # column 3 against 19 others of weight 1
    expected = (high * 3 + sum(range(20)) - 3) / (high + 19)
    torch.testing.assert_close(found, torch.full((1, 1, 1, 20), expected))


def of_few_numbers():
    query, keys, values = drawn(3, 2, 1, 12, 32)
    return query, keys, values, None


def with_a_mask_of_bools():
    query, keys, values = drawn(2, 4, 5, 9, 16)
    return query, keys, values, torch.ones(2, 1, 5, 9, dtype=torch.bool)


def in_double():
    query, keys, values = (part.double() for part in drawn(2, 4, 5, 9, 16))
    return query, keys, values, None


@pytest.mark.parametrize("given", [of_few_numbers, with_a_mask_of_bools, in_double])
def test_what_does_not_suit_goes_the_usual_way(given):
    query, keys, values, seen = given()
    with torch.no_grad():
        found = attend_in_step(query, keys, values, seen, 0.3)
        expected = scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=0.3)
    assert torch.equal(found, expected)


def test_gradients_are_torchs():
    found = []
    for way in (attend_in_step, lambda q, k, v, seen, scale: scaled_dot_product_attention(q, k, v, seen, scale=scale)):
        torch.manual_seed(0)
        given = [part.requires_grad_() for part in drawn(2, 4, 5, 9, 16)]
        way(*given, None, 0.3).square().sum().backward()
        found.append([part.grad for part in given])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_under_autocast_torchs_attention_is_asked():
    query, keys, values = drawn(2, 4, 5, 9, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert attend_in_step(query, keys, values, None, 0.3).dtype is torch.bfloat16
