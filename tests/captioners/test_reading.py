"""Captions of an image that begin alike are read once: the same words, the same scores and the same gradients."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tellapart.captioners import reading as reading_module
from tellapart.captioners.families import base
from tellapart.captioners.linear import Linear
from tellapart.captioners.reading import Tree, choose_reading, least_saved, one_by_one
from tellapart.types import Decoding, Rollout
from tiny.blip2 import tiny_blip2
from tiny.florence2 import tiny_florence2
from tiny.git import tiny_git
from tiny.llava import tiny_llava
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny_models import batch_of, tiny_blip, tiny_ved

captions = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), max_size=5)), min_size=1, max_size=12)


def tensors(drawn):
    """``(image, tokens, mask)`` of (image, words) pairs."""
    width = max(1, *(len(words) for _, words in drawn))
    mask = torch.tensor([[place < len(words) for place in range(width)] for _, words in drawn])
    tokens = torch.tensor([words + [9] * (width - len(words)) for _, words in drawn])
    return torch.tensor([image for image, _ in drawn]), tokens, mask


@given(captions)
@settings(max_examples=200, deadline=None)
def test_every_word_is_read_after_the_words_before_it_and_sees_those_alone(drawn):
    image, tokens, mask = tensors(drawn)
    beginnings = {(owner, tuple(words[:end])) for owner, words in drawn for end in range(1, len(words))}
    words = sum(max(0, len(words) - 1) for _, words in drawn)
    if not words:
        return
    for read, count in ((one_by_one(image, mask), words), (Tree(image, tokens, mask).reading(), len(beginnings))):
        assert len(read.row) == count

        def sees(node, other, read=read):
            """Whether attention shows node the words of other."""
            if read.group[node] != read.group[other]:
                return False
            table = read.sees if read.sees.dim() == 2 else read.sees[read.group[node], 0]
            return bool(table[read.place[node], read.place[other]])

        slots = list(zip(read.group.tolist(), read.place.tolist(), strict=True))
        assert len(set(slots)) == count, "no two words share a place"
        assert torch.equal(read.owner[read.group], read.image)
        for caption, (owner, text) in enumerate(drawn):
            nodes = read.node[caption, : max(0, len(text) - 1)].tolist()
            for end, node in enumerate(nodes):
                assert int(read.image[node]) == owner
                assert tokens[read.row[node], : end + 1].tolist() == text[: end + 1]
                assert int(read.column[node]) == end
                assert [other for other in range(count) if sees(node, other)] == sorted(nodes[: end + 1])


@given(captions)
@settings(max_examples=100, deadline=None)
def test_each_word_is_predicted_by_what_was_read_before_it(drawn):
    image, tokens, mask = tensors(drawn)
    first = torch.arange(3.0)[:, None] - 10
    for read in (one_by_one(image, mask), *([Tree(image, tokens, mask).reading()] if bool(mask[:, 1:].any()) else [])):
        states = read.states(first, torch.arange(float(len(read.row)))[:, None], image, mask)
        row, column = states.place
        assert sorted(map(list, zip(row.tolist(), column.tolist(), strict=True))) == mask.nonzero().tolist()
        assert bool((states.index.diff() >= 0).all())
        for state, caption, place in zip(states.each()[:, 0].tolist(), row.tolist(), column.tolist(), strict=True):
            own = image[caption] - 10 if place == 0 else read.node[caption, place - 1]
            assert state == float(own)


MAKERS = {
    "GPT-2": tiny_ved,
    "GPT-2, prompt": partial(tiny_ved, prompt="a red"),
    "BLIP": tiny_blip,
    "BLIP-2 (OPT)": partial(tiny_blip2, prompt="a photo of"),
    "GIT": tiny_git,
    "Florence-2": tiny_florence2,
    "LLaVA": tiny_llava,
    "Qwen2-VL": tiny_qwen2_vl,
}


def scored(captioner, rollout):
    """Log-probabilities, entropies and gradients of all that trains."""
    captioner.zero_grad()
    scores = captioner(rollout, want={"entropy", "hidden"})
    weights = torch.linspace(-1, 1, scores.logprobs.numel()).view_as(scores.logprobs)
    ((scores.logprobs + scores.entropy) * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}
    return scores.logprobs.detach(), scores.entropy.detach(), scores.hidden.detach(), gradients


@pytest.mark.parametrize("name", MAKERS)
def test_scores_and_gradients_are_those_of_reading_each_caption_by_itself(name, monkeypatch):
    captioner = MAKERS[name]().eval()
    batch = batch_of(captioner, 4)
    beams = captioner.generate(batch, Decoding(num_beams=4, num_return_sequences=4, max_new_tokens=12))
    order = torch.tensor([3, 0, 5, 6, 7, 4, 9, 8, 10, 11, 2, 1])  # of three images; a caption of one is cut to nothing
    mask = beams.mask[order].clone()
    mask[3] = False
    rollout = Rollout(batch, beams.image[order], [""] * 12, beams.tokens[order] * mask, mask, torch.ones(12).bool())
    found, chosen = {}, []

    def choose(*given):
        chosen.append((choose_reading(*given), given[3:]))
        return chosen[-1][0]

    monkeypatch.setattr(base, "choose_reading", choose)
    for gain in (0.0, 100.0):
        monkeypatch.setattr(reading_module, "GAIN", gain)
        result = scored(captioner, rollout)
        [(read, (width, layers))] = chosen
        assert width == result[2].shape[-1], "the decoder's width"
        assert layers == len(captioner.family.by_parts(Linear()).blocks)
        chosen.clear()
        found[gain] = len(read.row), *result
    alone, shared = found[0.0], found[100.0]
    assert alone[0] == int(mask[:, 1:].sum()) > shared[0]
    for ours, theirs in zip(shared[1:4], alone[1:4], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    assert shared[4].keys() == alone[4].keys()
    ours, theirs = (torch.cat([side[4][key].flatten() for key in alone[4]]) for side in (shared, alone))
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_captions_are_read_together_where_that_costs_less():
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9], [4, 6, 7, 8]])
    mask = torch.ones(3, 4, dtype=torch.bool)
    same = torch.tensor([0, 0, 0])

    def words(*given):
        return len(choose_reading(*given, 2).row)

    # 6 words in a group of 6 places: 6 * 7 * 10 + 36 = 456 instead of 9 * 7 * 10 + 3 * 9 = 657
    assert words(same, tokens, mask, 10) == 6
    assert words(torch.tensor([0, 1, 2]), tokens, mask, 10) == 9, "nothing is shared"
    different = tokens + torch.tensor([[0], [10], [20]])
    assert words(same, different, mask, 10) == 9
    # every caption twice: 9 words and 81 instead of 18 and 54; the places cost more where layers are narrow
    both, twice, all_words = (
        torch.zeros(6, dtype=torch.long),
        torch.cat([different, different]),
        torch.ones(6, 4).bool(),
    )
    assert words(both, twice, all_words, 10) == 9
    assert words(both, twice, all_words, 0) == 18


def test_on_a_gpu_much_must_be_saved():
    """Five captions of 20 words of 32 images begin with the same 11: of 5 * 19 words that are read, 11 + 5 * 8 remain."""
    words = 32 * (5 * 19 - 11 - 5 * 8)
    blip, opt = (768, 12), (2560, 32)
    for width, layers, pays in ((*blip, False), (*opt, True)):
        saved = words * 7 * width
        assert (saved > least_saved(torch.device("cuda"), width, layers)) == pays
        assert least_saved(torch.device("cuda"), width, layers) * 4 * width * layers == pytest.approx(2e12)
        assert least_saved(torch.device("cpu"), width, layers) == 0


def test_a_group_is_as_large_as_the_largest():
    """One image of twelve captions that share half of their words, and nine of two: its places would be those of all."""
    image = torch.cat([torch.zeros(12, dtype=torch.long), torch.arange(1, 10).repeat_interleave(2)])
    tokens = torch.arange(30)[:, None] * 100 + torch.arange(9)
    tokens[:12, :4] = torch.arange(4)
    tokens[13::2] = tokens[12::2]
    mask = torch.ones(30, 9, dtype=torch.bool)
    tree = Tree(image, tokens, mask)
    # 4 + 12 * 4 words in one group, 8 in each of nine: all ten have 52 places
    assert tree.cost(10) == (52 + 9 * 8) * 7 * 10 + 10 * 52**2
    alone = one_by_one(image, mask)
    assert alone.cost(10) == 30 * 8 * 7 * 10 + 30 * 8**2
    assert choose_reading(image, tokens, mask, 10, 2).sees.dim() == 2, "fewer words, but more places"
    assert choose_reading(image[12:], tokens[12:], mask[12:], 10, 2).sees.dim() == 4
