"""The world's language model, and the objective that teaches it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from tellapart.evaluation.fluency import PerplexityMeasure
from tellapart.objectives.next_word import NextWord
from tellapart.rewards.language_model import LanguageModel
from tellapart.types import Batch
from tellapart.world import build_tokenizer, load_world
from tellapart.world.stages import resolve


class Bigrams(nn.Module):
    """A table ``[V, V]`` of logits of the next word."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(size, size, generator=torch.Generator().manual_seed(0)).double())

    def forward(self, input_ids, attention_mask):
        return type("Out", (), {"logits": self.table[input_ids]})()


def test_every_word_and_the_end_count_and_nothing_else():
    tokenizer = build_tokenizer()
    model, captions = Bigrams(len(tokenizer)), ["a red square", "a small blue circle in the top"]
    objective = NextWord(model, tokenizer)
    torch.manual_seed(0)
    lines = objective.collect(Batch(["1", "2"], [[text] for text in captions]), 0)
    [piece] = objective.losses(lines)
    expected = 0.0
    for text in captions:
        ids = [tokenizer.bos_token_id, *tokenizer.convert_tokens_to_ids(text.split()), tokenizer.eos_token_id]
        for before, after in itertools.pairwise(ids):
            row = model.table[before].tolist()
            expected += math.log(sum(map(math.exp, row))) - row[after]
    assert float(piece.loss.detach()) == pytest.approx(expected, rel=1e-5)
    assert int(piece.weight) == 4 + 8


@pytest.mark.slow
def test_the_stage_tells_sentences_of_the_world_from_their_words():
    reader = LanguageModel.from_pretrained(resolve("world/language_model", size="small"))
    texts = [example.references[0] for example in load_world("val", size="small")]
    orders = {"written": texts, "backwards": [" ".join(reversed(text.split())) for text in texts]}
    found = {
        name: PerplexityMeasure(reader)(dict(enumerate(some)))[0]["perplexity"]  # type: ignore[arg-type]
        for name, some in orders.items()
    }
    assert found["written"] < 0.3 * found["backwards"]
    assert found["written"] < 0.3 * len(build_tokenizer())
