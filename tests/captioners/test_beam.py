"""Our beam search against Hugging Face's, over settings, and what it promises by itself."""

import pytest
import torch
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from tellapart.captioners import drawing
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_ved

SETTINGS = [
    {"num_beams": 2},
    {"num_beams": 5, "num_return_sequences": 5},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.0},
    {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 2.5},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": -1.0},
    {"num_beams": 4, "num_return_sequences": 4, "no_repeat_ngram_size": 1},
    {"num_beams": 4, "num_return_sequences": 4, "no_repeat_ngram_size": 2, "min_new_tokens": 6},
    {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 1},
    {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 3, "min_new_tokens": 3},
]


def theirs(captioner, batch, settings):
    states = captioner.encode(batch).states
    config = GenerationConfig(
        decoder_start_token_id=1, eos_token_id=captioner.family.eos, pad_token_id=0, early_stopping=False, **settings
    )
    with torch.no_grad():
        out = captioner.family.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=states), generation_config=config
        )
    return [captioner.tokenizer.convert_ids_to_tokens(row) for row in out[:, 1:].tolist()]


def ours(captioner, batch, settings):
    rollout = captioner.generate(batch, Decoding(**settings))
    return [
        captioner.tokenizer.convert_ids_to_tokens(row[:length])
        for row, length in zip(rollout.tokens.tolist(), rollout.lengths.tolist(), strict=True)
    ]


def ended(rows, eos):
    """Rows up to their first EOS."""
    return [row[: next((i + 1 for i, word in enumerate(row) if word in eos), len(row))] for row in rows]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("eos_logit", [0.5, 2.0, 5.0])
def test_beams_are_hugging_faces(settings, eos_logit):
    """Captions that end early, late and never; many images, so that some leave the search before others."""
    captioner = tiny_ved(eos_logit=eos_logit, seed=4)
    batch = batch_of(captioner, 12)
    chosen = {"max_new_tokens": 14, **settings}
    assert ours(captioner, batch, chosen) == ended(theirs(captioner, batch, chosen), {"</s>"})


def test_several_ends_of_a_caption():
    captioner = tiny_ved(eos_logit=1.0, seed=4)
    captioner.family.eos = captioner.text.eos = [3, 10, 11]
    batch = batch_of(captioner, 8)
    chosen = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 12}
    words = set(captioner.tokenizer.convert_ids_to_tokens([3, 10, 11]))
    assert ours(captioner, batch, chosen) == ended(theirs(captioner, batch, chosen), words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_image_is_searched_alike_alone_and_among_others(dtype):
    captioner = tiny_ved(eos_logit=2.0, seed=4).to(dtype)
    batch = batch_of(captioner, 9)
    chosen = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 14}
    together = ours(captioner, batch, chosen)
    alone = [row for i in range(9) for row in ours(captioner, batch.select([i]), chosen)]
    assert together == alone


@pytest.mark.parametrize("many", [0, drawing.MANY])
@pytest.mark.parametrize(
    ("beams", "words", "count"), [(3, 7, 6), (3, 7, 21), (5, 639, 10), (5, 640, 10), (2, 5000, 4), (1, 300, 2)]
)
def test_the_likeliest_continuations_are_those_of_sorting_all(beams, words, count, many, monkeypatch):
    """On both sides of ``WORDS`` for each that is wanted; some words forbidden, and beams that may not go on."""
    monkeypatch.setattr(drawing, "MANY", many)
    generator = torch.Generator().manual_seed(0)
    running = torch.randn(4, beams, generator=generator)
    running[0, 1:] = drawing.NEVER
    logprobs = torch.randn(4, beams, words, generator=generator).log_softmax(dim=2)
    logprobs[1, :, : words // 2] = -torch.inf
    values, parents, tokens = drawing._likeliest(running, logprobs.clone(), count)
    for image in range(4):
        sums = {(b, w): float(running[image, b] + logprobs[image, b, w]) for b in range(beams) for w in range(words)}
        assert values[image].tolist() == sorted(sums.values(), reverse=True)[:count]
        found = list(zip(parents[image].tolist(), tokens[image].tolist(), strict=True))
        assert [sums[pair] for pair in found] == values[image].tolist()
        assert len(set(found)) == count
