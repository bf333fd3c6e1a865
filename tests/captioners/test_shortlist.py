"""The word that a shortlist finds is the one of the float32 logits, or it finds none."""

import copy
import functools

import pytest
import torch

from family_checks import TINY, make
from tellapart.captioners import shortlist
from tellapart.captioners.contrastive import Contrast
from tellapart.captioners.drawing import block_repeated_ngrams, draw, highest
from tellapart.captioners.families import base
from tellapart.captioners.shortlist import KeptShortlist, Shortlist
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_blip, tiny_ved


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


E = 2.0**-8
"""The distance of bfloat16 numbers between 1 and 2 is twice this, so 1 + 0.99 E is rounded to 1 and 1 + 1.01 E to 1 + 2 E."""


def rounded_rows():
    """Rounding makes row 7 smaller and row 9 larger; only what it takes from rows matters, since the state is 1 everywhere."""
    weight = torch.zeros(300, 65)
    weight[:, 64] = -9
    weight[7, :64], weight[9, :64] = 1 + 0.99 * E, 1 + 1.01 * E
    weight[9, 0] -= 0.03 * 64 * E
    weight[[7, 9], 64] = -64
    return weight, torch.ones(1, 65)


def rounded_state():
    """The same with a state that rounding changes, and rows that it does not."""
    weight, state = torch.zeros(300, 65), torch.ones(1, 65)
    weight[:, 64] = -9
    state[0, :32], state[0, 32:64] = 1 + 0.99 * E, 1 + 1.01 * E
    weight[7, :32], weight[7, 32:64] = 1, -1
    weight[9, :64] = -weight[7, :64]
    weight[7, 64], weight[9, 64] = 0.03 * 64 * E, 0
    return weight, state


def rounded_scores():
    """Logits of 256.9 and 257.1: bfloat16 numbers lie 2 apart there, so scores are 256 and 258."""
    weight = torch.zeros(300, 3)
    weight[9], weight[7] = torch.tensor([256.0, 0.875, 0]), torch.tensor([256.0, 1.125, 0])
    weight[11], weight[12] = torch.tensor([256.0, 0.9375, 0]), torch.tensor([256.0, 0.75, 0.25])
    return weight, torch.ones(1, 3)


@pytest.mark.parametrize("case", [rounded_rows, rounded_state, rounded_scores])
def test_what_rounding_takes_is_allowed_for(case):
    weight, state = case()
    wanted = highest((state.double() @ weight.double().T).float())
    found = Shortlist(weight, None).highest(state, everything)
    assert found.tolist() == wanted.tolist()


def test_the_lowest_score_that_is_kept():
    """By hand: the state is (1, 1 + E), which is rounded to (1, 1), so E is taken from it; the longest row has length 5, and
    nothing is taken from rows. The top score is 8 in row 1, of which bfloat16 may hide 8 E."""
    weight = torch.tensor([[3.0, 4.0], [4.0, 3.0], [0.0, 1.0]])
    states, made = torch.tensor([[1.0, 1 + 0.5 * E]]), Shortlist(weight, None)
    scores = torch.tensor([[7.0, 8.0, 1.0]]).bfloat16()
    expected = torch.tensor(8 - 8 * E - 2 * 0.5 * E * 5).bfloat16()
    assert made._lowest(scores, states, states.bfloat16().float()).tolist() == [expected.item()]
    lost = Shortlist(torch.tensor([[1 + 0.5 * E, 1.0], [0.0, 0.0]]), None)
    assert lost._lost.item() == pytest.approx(0.5 * E)
    expected = torch.tensor(8 - 8 * E - 2 * 0.5 * E * 2**0.5).bfloat16()
    ones = torch.ones(1, 2)
    assert lost._lowest(scores, ones, ones).tolist() == [expected.item()]


def test_rows_of_every_part_of_the_embedding_are_measured(monkeypatch):
    monkeypatch.setattr(shortlist, "ROWS", 4)
    weight = torch.ones(11, 4)
    weight[10] = 30 + 0.05  # which bfloat16 rounds to 30
    made = Shortlist(weight, None)
    assert made._longest.item() == pytest.approx(60.0)
    assert made._lost.item() == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("scale", [1e-20, 1e-30, 1e-36])
def test_tiny_numbers_are_not_taken_for_nothing(scale):
    """Their squares are 0 in float32."""
    generator = torch.Generator().manual_seed(7)
    weight = scale * (1 + 0.01 * torch.randn(2000, 64, generator=generator))
    states = 2 * torch.randint(0, 2, (30, 64), generator=generator).float() - 1
    found = Shortlist(weight, None).highest(states, everything)
    assert found is None or found.tolist() == highest(states @ weight.T).tolist()
    for state in states:
        found = Shortlist(weight, None).highest(state[None], everything)
        assert found is None or found.item() == highest(state[None] @ weight.T).item()


def test_a_crowd_of_likely_words_is_left_to_all_logits_and_then_not_tried_again():
    weight = torch.ones(300, 8) + 1e-5 * torch.arange(300.0)[:, None]  # which float32 could tell apart
    made = Shortlist(weight, None)
    for _ in range(shortlist.TRIED):
        assert made.pays
        assert made.highest(torch.ones(2, 8), everything) is None
    assert not made.pays


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
def test_captions_of_every_family_are_those_without_it(family, settings, always, tmp_path):
    captioner = make(family, tmp_path)
    batch = batch_of(captioner, 6)
    decoding = Decoding(max_new_tokens=10, **settings)
    without = captioner.generate(batch, decoding)
    assert not always, "the first batch goes without"
    shortlisted = captioner.generate(batch, decoding)
    used = captioner.family.plain_head is not None and captioner.family.softcap is None
    assert used == any(words is not None for words in always)
    assert shortlisted.tokens.tolist() == without.tokens.tolist()


def test_under_autocast_float32_decides(always):
    captioner = tiny_blip()
    batch = batch_of(captioner, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = [captioner.generate(batch, Decoding(max_new_tokens=8)).tokens.tolist() for _ in range(2)]
    assert any(words is not None for words in always)
    assert found[0] == found[1]


def test_other_ways_to_draw_need_all_logits(always):
    captioner = tiny_ved()
    batch, greedy = batch_of(captioner, 3), Decoding(max_new_tokens=6)
    sampled = Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=6)
    expected = captioner.generate(batch, greedy).tokens
    for _ in range(2):
        captioner.generate(batch, sampled)
        captioner.generate(batch, Decoding(do_sample=True, max_new_tokens=6))
        captioner.generate(batch, Decoding(num_beams=3, max_new_tokens=6))
        captioner.generate(batch, greedy, contrast=Contrast(torch.tensor([[1], [2], [0]])))
        _, alone = captioner.generate_with_greedy(batch, sampled)
        with torch.no_grad():
            drawn, logprobs = draw(captioner.family, captioner.encode(batch), greedy, None, logprobs=True)
    assert not always
    assert alone.tokens.tolist() == drawn[:, : alone.tokens.shape[1]].tolist() == expected.tolist()
    assert (logprobs[:, 0] < 0).all()


def head_of(words=300, width=32):
    head = torch.nn.Linear(width, words, bias=False)
    return head, (head.weight, None)


def test_it_is_made_for_the_second_batch_of_the_same_weights():
    head, plain = head_of()
    kept = KeptShortlist()
    assert kept.of(head, plain) is None
    first = kept.of(head, plain)
    assert first is not None
    assert kept.of(head, plain) is first
    assert copy.deepcopy(kept).of(head, plain) is None


def by_an_optimiser(head):
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1, fused=True)  # torch does not count its changes
    head(torch.ones(1, 32)).sum().backward()
    optimizer.step()


def in_place(head):
    with torch.no_grad():
        head.weight[7, 3] += 1


def by_another_weight(head):
    changed = head.weight.detach().clone()
    changed[7, 3] += 1
    head.weight = torch.nn.Parameter(changed)


@pytest.mark.parametrize("change", [by_an_optimiser, in_place, by_another_weight])
def test_it_is_made_again_when_the_weights_change(change):
    head, plain = head_of()
    kept = KeptShortlist()
    kept.of(head, plain)
    first = kept.of(head, plain)
    change(head)
    plain = (head.weight, None)
    assert kept.of(head, plain) is None
    second = kept.of(head, plain)
    assert second is not first
    assert torch.equal(second._rounded, head.weight.detach().bfloat16())


def test_it_may_be_made_in_inference_mode_and_used_where_gradients_are_wanted():
    weight, _ = random_head(9)
    with torch.inference_mode():
        made = Shortlist(weight, None)
    states = weight[:2].clone().requires_grad_()
    assert made.highest(states, everything).tolist() == [0, 1]


def large(**options):
    return torch.zeros(1, **options).expand(2**16, 2**7)


def in_inference_mode():
    with torch.inference_mode():
        return torch.zeros(1).expand(2**16, 2**7)


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(10, 10),  # small
        large(dtype=torch.bfloat16),
        large(device="meta"),
        large().as_subclass(type("Shard", (torch.Tensor,), {})),
        in_inference_mode(),
    ],
)
def test_where_it_would_not_pay_or_not_settle_it_is_not_used(weight, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert not shortlist.quick(weight)
    assert shortlist.quick(large())


def refused():
    raise RuntimeError("mix of the legacy and new APIs")


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (torch.cpu, "_is_avx512_bf16_supported", lambda: False),
        (torch, "get_float32_matmul_precision", lambda: "medium"),
        (torch, "get_float32_matmul_precision", refused),
    ],
)
def test_a_processor_or_a_switch_may_rule_it_out(where, name, value, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(where, name, value)
    assert not shortlist.quick(large())


def test_a_model_made_in_inference_mode_draws(monkeypatch):
    monkeypatch.setattr(shortlist, "LEAST", 1)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    with torch.inference_mode():
        captioner = tiny_ved()
        batch = batch_of(captioner, 2)
        found = [captioner.generate(batch, Decoding(max_new_tokens=4)).tokens.tolist() for _ in range(2)]
    assert found[0] == found[1]
