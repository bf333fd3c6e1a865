"""Attention to an image with its linear layers put into keys and values: the layers and a plain computation."""

import math

import pytest
import torch

from tellapart.captioners import cross
from tellapart.captioners.base import Encoded
from tellapart.captioners.cross import Cross, Folded
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_blip, tiny_ved

HEADS, WIDTH, STATES = 3, 8, 2


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def layer(*, biases=True):
    size = HEADS * WIDTH
    into, onto = ((torch.randn(size, size), torch.randn(size) if biases else None) for _ in range(2))
    return Cross(
        lambda states: states,
        lambda rows: torch.nn.functional.linear(rows, *into),
        lambda to, rows: to + torch.nn.functional.linear(rows, *onto),
        0.3,
        into,
        onto,
    )


def plainly_attended(part, to, rows, keys, values):
    """``[B, n, D]``, number by number where attention is computed."""
    found = torch.empty_like(to)
    for image in range(len(to)):
        query = part.query(rows[image])
        heads = []
        for head in range(HEADS):
            own = query[:, head * WIDTH : (head + 1) * WIDTH]
            scores = [[0.3 * float(one @ key) for key in keys[image, head]] for one in own]
            weights = [[math.exp(score) / sum(map(math.exp, row)) for score in row] for row in scores]
            heads.append(torch.tensor(weights) @ values[image, head])
        found[image] = part.out(to[image], torch.cat(heads, dim=1))
    return found


@pytest.mark.parametrize("biases", [True, False])
@torch.inference_mode()
def test_it_is_attention_between_two_linear_layers(biases):
    part = layer(biases=biases)
    keys, values = torch.randn(2, 4, HEADS, STATES, WIDTH)
    to, rows = torch.randn(2, 4, 5, HEADS * WIDTH)
    folded = Folded.of(part, keys, values, 5)
    wanted = plainly_attended(part, to, rows, keys, values)
    torch.testing.assert_close(folded.attend(to, rows), wanted, rtol=1e-5, atol=1e-4)
    chosen = torch.tensor([3, 1])
    again = folded.select(chosen).attend(to[chosen], rows[chosen])
    torch.testing.assert_close(again, wanted[chosen], rtol=1e-5, atol=1e-4)


def test_many_states_layers_without_weights_and_other_precisions_stay_as_they_are():
    part, states = layer(), torch.randn(2, HEADS, STATES, WIDTH)
    with torch.no_grad():
        assert Folded.of(part, states, states, 5) is not None
        assert Folded.of(part, states, states, cross.LEAST - 1) is None
        many = torch.randn(2, HEADS, WIDTH // 4 + 1, WIDTH)
        assert Folded.of(part, many, many, 5) is None
        large = torch.randn(2, cross.MOST // 2 + 1, 2, WIDTH)
        assert Folded.of(part, large, large, 5) is None
        assert Folded.of(part, states.double(), states.double(), 5) is None
        assert Folded.of(Cross(part.states, part.query, part.out, 0.3, None, part.onto), states, states, 5) is None
        with torch.autocast("cpu", torch.bfloat16):
            assert Folded.of(part, states, states, 5) is None
    assert Folded.of(part, states, states, 5) is None, "gradients may be wanted"


@pytest.mark.parametrize("width", [32, 80])
@pytest.mark.parametrize("count", [1, 4])
def test_captions_do_not_depend_on_states_that_are_hidden(width, count):
    """With one caption of an image and with several, where layers would fold and where they would not."""
    captioner = tiny_ved(width=width, eos_logit=1.0)
    batch = batch_of(captioner, 6)
    encoded = captioner.encode(batch)
    hidden = torch.tensor([2, 3])
    mask = torch.ones(encoded.states.shape[:2], dtype=torch.bool)
    mask[:, hidden] = False
    other = encoded.states.clone()
    other[:, hidden] = 9 * torch.randn_like(other[:, hidden])
    sampled = {"do_sample": True, "num_return_sequences": count} if count > 1 else {}
    for decoding in (Decoding(max_new_tokens=12, **sampled), Decoding(max_new_tokens=12, num_beams=4)):
        drawn = []
        for states, seen in ((encoded.states, mask), (other, mask), (other, None)):
            torch.manual_seed(1)
            drawn.append(captioner.generate(batch, decoding, encoded=Encoded(states, seen)).tokens)
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[1], drawn[2])


@pytest.mark.parametrize("make", [tiny_ved, tiny_blip])
def test_captions_are_those_of_the_layers(make, monkeypatch):
    """Samples, of which some leave before others, so that images keep captions in different numbers; and beams."""
    counted = []
    attend = Folded.attend
    monkeypatch.setattr(Folded, "attend", lambda self, *rows: (counted.append(len(rows[0])), attend(self, *rows))[1])
    captioner = make(width=80)  # of 4 heads, with 5 states
    batch = batch_of(captioner, 6)
    for decoding in (
        Decoding(max_new_tokens=12, do_sample=True, num_return_sequences=4),
        Decoding(max_new_tokens=12, num_beams=4, num_return_sequences=4),
    ):
        found = []
        for most in (10**6, 0):
            counted.clear()
            monkeypatch.setattr(cross, "MOST", most)
            torch.manual_seed(2)
            found.append(captioner.generate(batch, decoding).tokens)
            assert bool(counted) == (most > 0)
        assert torch.equal(*found)
