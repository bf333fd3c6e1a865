"""Caches whose rows are chosen, and written in place."""

import pytest
import torch
from transformers import DynamicCache

from tellapart.captioners.cache import WrittenLayer, follow, select_rows, written
from tellapart.captioners.steps import CachedSteps
from tellapart.types import Decoding
from tiny.llava import tiny_llava
from tiny_models import batch_of


def filled(rows=2, words=3):
    cache = DynamicCache()
    for layer in range(2):
        cache.update(*torch.randn(2, rows, 4, words, 5), layer)
    return cache


def contents(cache):
    return [tensor.clone() for layer in cache.layers for tensor in (layer.keys, layer.values)]


def test_a_cache_that_is_written_in_place_holds_what_one_that_is_copied_does():
    """Three rows for each of two images, five words, parents of the same image, then one image leaves."""
    torch.manual_seed(0)
    start, rows = filled(), torch.arange(2).repeat_interleave(3)
    before = contents(start)
    one, other = written(start, rows, 5), select_rows(start, rows)
    parents = [[0, 0, 2, 5, 4, 3], [1, 2, 0, 3, 3, 3], [0, 1, 2, 3, 4, 5]]
    for parent in parents:
        for layer in range(2):
            new = torch.randn(2, 6, 4, 1, 5)
            for found, expected in zip(one.update(*new, layer), other.update(*new, layer), strict=True):
                assert torch.equal(found, expected)
        index = torch.tensor(parent)
        one, other = follow(one, index), follow(other, index)
        assert all(torch.equal(*pair) for pair in zip(contents(one), contents(other), strict=True))
        assert one.get_seq_length() == other.get_seq_length()
    left = torch.arange(3, 6)
    one, other = select_rows(one, left), select_rows(other, left)
    for layer in range(2):
        new = torch.randn(2, 3, 4, 2, 5)
        assert torch.equal(one.update(*new, layer)[0], other.update(*new, layer)[0])
    assert all(torch.equal(*pair) for pair in zip(contents(start), before, strict=True)), "the prefix stays as it was"


@pytest.mark.parametrize("beams", [1, 4])
def test_captions_of_a_prefix_family_are_those_of_a_copied_cache(beams, monkeypatch):
    captioner = tiny_llava()
    captioner.family.reads_parts = False
    batch, decoding = batch_of(captioner, 6), Decoding(num_beams=beams, num_return_sequences=beams, max_new_tokens=14)
    with torch.no_grad():
        steps = captioner.family.steps(captioner.encode(batch), beams, 14)
    assert isinstance(steps, CachedSteps)
    assert all(isinstance(layer, WrittenLayer) for layer in steps._cache.layers)
    found = captioner.generate(batch, decoding)
    monkeypatch.setattr("tellapart.captioners.steps.written", lambda cache, rows, longest: select_rows(cache, rows))
    assert torch.equal(captioner.generate(batch, decoding).tokens, found.tokens)
    assert len(set(found.lengths.tolist())) > 1
