"""The word that a shortlist finds is the one of the float32 logits, or it finds none."""

import functools

import pytest
import torch

from family_checks import TINY, make
from tellapart.captioners import shortlist
from tellapart.captioners.drawing import block_repeated_ngrams, highest
from tellapart.captioners.families import base
from tellapart.captioners.shortlist import KeptShortlist, Shortlist
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_ved


def everything(scores):
    return scores


def without(words):
    return lambda scores: scores.index_fill(1, torch.tensor(words), -torch.inf)


def random_head(seed, words=700, width=48, *, bias=False, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(words, width, generator=generator)
    return weight, torch.randn(words, generator=generator) if bias else None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [1e-4, 0.02, 1.0, 50.0])
@pytest.mark.parametrize("restrict", [everything, without([3, 5, 8])])
def test_it_finds_the_highest_logit(bias, scale, restrict):
    weight, offsets = random_head(1, bias=bias, scale=scale)
    states = torch.randn(40, 48, generator=torch.Generator().manual_seed(2))
    logits = restrict(torch.nn.functional.linear(states, weight, offsets))
    found = Shortlist(weight, offsets).highest(states, restrict)
    assert found is not None
    assert found.tolist() == highest(logits).tolist()


def test_words_that_may_not_repeat_are_left_out():
    weight, _ = random_head(3)
    states = torch.randn(6, 48, generator=torch.Generator().manual_seed(4))
    likeliest = highest(states @ weight.T)
    begun = torch.stack([torch.zeros(6).long(), likeliest, torch.zeros(6).long()], dim=1)  # after 0 came the likeliest
    restrict = functools.partial(block_repeated_ngrams, tokens=begun, size=2)
    second = (states @ weight.T).topk(2).indices[:, 1]
    assert Shortlist(weight, None).highest(states, restrict).tolist() == second.tolist()


def test_what_bfloat16_cannot_tell_apart_float32_decides():
    """Of two logits that are equal in bfloat16, 1 and 1.001, the second is higher; of the others each is 0."""
    weight = torch.zeros(300, 4)
    weight[7, 0], weight[9, 0] = 1.0, 1.001
    assert weight[7, 0].bfloat16() == weight[9, 0].bfloat16()
    states = torch.tensor([[1.0, 0, 0, 0]])
    assert highest(states.bfloat16() @ weight.bfloat16().T).tolist() == [7]
    assert Shortlist(weight, None).highest(states, everything).tolist() == [9]


def test_a_word_whose_bias_decides_is_found():
    """In bfloat16 256 and 256.4 are equal."""
    weight, bias = torch.zeros(300, 4), torch.zeros(300)
    bias[7], bias[9] = 256.0, 256.4
    assert Shortlist(weight, bias).highest(torch.ones(2, 4), everything).tolist() == [9, 9]


@pytest.mark.parametrize(
    "change",
    [
        lambda weight, states: weight[11].copy_(weight[10]),  # equals: their order in float32 decides
        lambda weight, states: weight[11].copy_(weight[10] * (1 + 1e-7)),
        lambda weight, states: states[0].fill_(torch.nan),
        lambda weight, states: states[0].fill_(torch.inf),
        lambda weight, states: states[0].fill_(0),  # every logit is the same
    ],
)
def test_where_it_cannot_tell_it_finds_none(change):
    weight, _ = random_head(5)
    states = weight[10:12].clone()  # so that the likeliest words are 10 and 11
    change(weight, states)
    assert Shortlist(weight, None).highest(states, everything) is None


def test_where_every_word_is_forbidden_it_finds_none():
    weight, _ = random_head(5)
    assert Shortlist(weight, None).highest(weight[:2], without(list(range(700)))) is None


def test_the_bound_holds_for_any_state():
    """Whatever has the highest float32 logit stays in the shortlist: also where rounding to bfloat16 takes the most."""
    generator = torch.Generator().manual_seed(6)
    odd = 1 + 2.0**-9 * (
        2 * torch.randint(0, 2, (400, 64), generator=generator) - 1
    )  # halfway between two bfloat16 numbers
    weight = odd * (2 * torch.randint(0, 2, (400, 64), generator=generator) - 1)
    states = (weight[:100] + 0.01 * torch.randn(100, 64, generator=generator)) * torch.logspace(-4, 4, 100)[:, None]
    made = Shortlist(weight, None)
    rounded = states.bfloat16()
    scores = torch.nn.functional.linear(rounded, made._rounded)
    likeliest = highest(states @ weight.T)
    lowest = made._lowest(scores, states, rounded.float())
    assert (scores.gather(1, likeliest[:, None]).squeeze(1) >= lowest).all()
    assert ((scores >= lowest[:, None]).sum(1) < 40).all(), "a bound that keeps most words would say nothing"


@pytest.fixture
def always(monkeypatch):
    """Every family uses a shortlist, whatever its size and this processor; the words that were settled by one."""
    found = []

    def told(self, states, restrict):
        words = original(self, states, restrict)
        found.append(words)
        return words

    original = Shortlist.highest
    monkeypatch.setattr(Shortlist, "highest", told)
    monkeypatch.setattr(base, "quick", lambda weight: True)
    return found


@pytest.mark.parametrize("settings", [{}, {"min_new_tokens": 4}, {"no_repeat_ngram_size": 2}])
@pytest.mark.parametrize("family", [*TINY])
def test_captions_of_every_family_are_those_without_it(family, settings, always, monkeypatch, tmp_path):
    captioner = make(family, tmp_path)
    batch = batch_of(captioner, 6)
    decoding = Decoding(max_new_tokens=10, **settings)
    shortlisted = captioner.generate(batch, decoding)
    used = captioner.family.plain_head is not None and captioner.family.softcap is None
    assert used == any(words is not None for words in always)
    monkeypatch.setattr(base, "quick", lambda weight: False)
    assert shortlisted.tokens.tolist() == captioner.generate(batch, decoding).tokens.tolist()


def test_other_decodings_need_all_logits(always):
    captioner = tiny_ved()
    batch = batch_of(captioner, 3)
    captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=6))
    captioner.generate(batch, Decoding(num_beams=3, max_new_tokens=6))
    assert not always


def test_it_is_made_again_when_the_weights_change():
    head, kept = torch.nn.Linear(32, 300, bias=False), KeptShortlist()
    first = kept.of(head, (head.weight, None))
    assert kept.of(head, (head.weight, None)) is first
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1, fused=True)  # torch does not count its changes
    head(torch.ones(1, 32)).sum().backward()
    optimizer.step()
    second = kept.of(head, (head.weight, None))
    assert second is not first
    assert torch.equal(second._rounded, head.weight.detach().bfloat16())


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(10, 10),  # small
        torch.zeros(1, dtype=torch.bfloat16).expand(2**16, 2**7),
        torch.zeros(1, device="meta").expand(2**16, 2**7),
    ],
)
def test_where_it_would_not_pay_it_is_not_used(weight, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert not shortlist.quick(weight)
    assert shortlist.quick(torch.zeros(1).expand(2**16, 2**7))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert not shortlist.quick(torch.zeros(1).expand(2**16, 2**7))
