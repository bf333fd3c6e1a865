"""Texts that are read at once: of similar length, and on a CPU of few tokens."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from listeners.tiny_listeners import clip_parts, siglip_parts
from tellapart.listeners import batches
from tellapart.listeners.batches import TOKENS_ON_CPU, batches_by_length
from tellapart.listeners.clip import ClipListener
from tiny_late import IDS, pictures, tiny_late

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@given(st.lists(st.integers(1, 900), max_size=200), st.integers(1, 70))
def test_every_text_is_in_one_batch_by_length(lengths, most):
    for device in (CPU, GPU):
        found = batches_by_length(lengths, most, device)
        order = [place for batch in found for place in batch]
        assert order == sorted(range(len(lengths)), key=lengths.__getitem__), "the first of equals comes first"
        assert all(0 < len(batch) <= most for batch in found)
        sizes = [len(batch) * max(lengths[place] for place in batch) for batch in found]
        if device == GPU:
            assert all(len(batch) == most for batch in found[:-1])
            continue
        assert all(size <= TOKENS_ON_CPU or len(batch) == 1 for size, batch in zip(sizes, found, strict=True))
        # none is cut earlier than it must be
        for batch, after in pairwise(found):
            assert len(batch) == most or (len(batch) + 1) * lengths[after[0]] > TOKENS_ON_CPU


@pytest.mark.parametrize("parts", [clip_parts, siglip_parts])
def test_embeddings_are_those_of_single_texts(parts, monkeypatch):
    listener, read = ClipListener.from_parts(*parts()), []
    texts = ["a red box", "a blue box on a red box", "a box", "a red box", "a blue box"]
    widest = max(listener._texts.width(ids) for ids in listener._texts.ids([listener.prefix + text for text in texts]))
    monkeypatch.setattr(batches, "TOKENS_ON_CPU", 2 * widest)
    embed = listener._embed_ids
    monkeypatch.setattr(listener, "_embed_ids", lambda ids: read.append(len(ids)) or embed(ids))
    found = listener.encode_texts(texts)
    assert len(read) > 1
    assert sum(read) == 4, "equal texts are read once"
    torch.testing.assert_close(found, torch.cat([listener.encode_texts([text]) for text in texts]), rtol=0, atol=1e-6)


def test_batches_of_a_late_listener_are_of_few_tokens(monkeypatch):
    monkeypatch.setattr(batches, "TOKENS_ON_CPU", 12)
    listener, read = tiny_late(), []
    checks = listener.model.word_checks
    monkeypatch.setattr(
        listener.model, "word_checks", lambda tokens, mask: read.append(tokens.numel()) or checks(tokens, mask)
    )
    listener.cache_images(pictures())
    texts = ["a red box", "a blue box", "a red box and a blue box", "a box"]
    found = listener.logprobs(texts, IDS)
    assert len(read) > 1
    assert max(read[:-1]) <= 12, "the last one's text alone may have more"
    single = torch.cat([listener.logprobs([text], IDS) for text in texts])
    torch.testing.assert_close(found, single, rtol=0, atol=1e-5)
