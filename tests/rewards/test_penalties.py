"""VLRM's penalties and returns, through tokenizers of every kind."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from given import vector
from tellapart.rewards.penalties import Penalties, TokenText, token_returns
from tellapart.types import Batch, Rollout
from tiny.florence2 import byte_tokenizer
from tiny_models import bert_tokenizer, word_tokenizer

TABLE_1 = "an image of a man in green shirt and green shirt is talking about a car"
OTHERS = ["a gunshot victim near two trucks", "the cat's café, 1993", "naïve 猫 and 🙂 smile"]


def tokenizers():
    texts = [TABLE_1, *OTHERS]
    return {
        "word level": word_tokenizer(texts),
        "word pieces": bert_tokenizer([TABLE_1, *OTHERS[:2]]),
        "bytes": byte_tokenizer(texts, 300),  # so few that most words are several tokens
    }


@pytest.fixture(scope="module", params=list(tokenizers()))
def tokenizer(request):
    return tokenizers()[request.param]


def rollout_of(tokenizer, texts, *, finished=True):
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    rows = [row + ([end] if finished else []) for row in rows]
    width = max(map(len, rows))
    mask = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    batch = Batch(["x"], [[]])
    done = torch.full((len(rows),), finished)
    return Rollout(batch, torch.zeros(len(rows), dtype=torch.long), list(texts), tokens, mask, done)


def test_pieces_join_to_the_text_and_are_the_words(tokenizer):
    reader = TokenText(tokenizer)
    for text in (TABLE_1, OTHERS[0]):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        joined, spans = reader.spans(ids)
        assert joined.strip() == text
        shown = [joined[a:b] for a, b in spans]
        assert "".join(shown) == text.replace(" ", "")
        assert not any(piece.startswith(" ") for piece in shown)


def every_byte():
    """A byte-level tokenizer that writes characters it has never seen as one token a byte."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["</s>"], show_progress=False
    )
    backend.train_from_iterator([TABLE_1], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def test_characters_that_several_tokens_share():
    tokenizer = every_byte()
    ids = tokenizer(OTHERS[2], add_special_tokens=False)["input_ids"]
    assert len(ids) > len(OTHERS[2])
    text, spans = TokenText(tokenizer).spans(ids)
    assert text.strip() == OTHERS[2]
    assert "".join(text[a:b] for a, b in spans) == OTHERS[2].replace(" ", "")
    bad, _ = Penalties(tokenizer, ["smile"])(rollout_of(tokenizer, [OTHERS[2]]))
    count = len("smile")  # a token a letter; the space before them is a token of its own and no part of a word
    assert bad[0].tolist() == [False] * (len(ids) - count) + [True] * count + [False]  # the last is EOS


def test_table_1_through_a_real_tokenizer(tokenizer):
    """The paper's example: offsets -7, -6, -5, eight times -4, -3, -2, -1, 0, 0, one a word and 0 for EOS."""
    inputs, expected, tolerance = vector("vlrm_returns_table1")
    rollout = rollout_of(tokenizer, [TABLE_1])
    bad, repeated = Penalties(tokenizer, inputs["bad_phrases"])(rollout)
    words, place = [], 0
    for word in TABLE_1.split():  # the tokens of each word, counted by tokenizing it where it stands
        text = TABLE_1[: place + len(word)]
        words.append(len(tokenizer(text, add_special_tokens=False)["input_ids"]))
        place += len(word) + 1
    firsts = [0, *words[:-1]]
    assert [bool(bad[0, i]) for i in firsts] == [bool(flag) for flag in inputs["bad"][:-1]]
    assert [bool(repeated[0, i]) for i in firsts] == [bool(flag) for flag in inputs["repeat"][:-1]]
    for first, last in zip(firsts, words, strict=True):  # every token of a penalised word is
        assert len(set(bad[0, first:last].tolist())) == 1
        assert len(set(repeated[0, first:last].tolist())) == 1
    if len(words) != words[-1]:
        return  # words of several tokens lose more than one: the table's numbers are those of one token a word
    whole = torch.tensor([inputs["ref"] + inputs["sim"]], dtype=torch.float64)
    returns = token_returns(whole, bad, repeated, rollout.mask, rollout.finished)
    assert returns[0].tolist() == pytest.approx(expected["R"], abs=tolerance)
    cut = rollout_of(tokenizer, [TABLE_1], finished=False)
    returns = token_returns(whole, bad[:, :-1], repeated[:, :-1], cut.mask, cut.finished)
    assert returns[0].tolist() == pytest.approx(expected["R_without_eos"], abs=tolerance)


def test_returns_by_a_double_loop():
    generator = torch.Generator().manual_seed(0)
    bad, repeated = (torch.rand(4, 6, generator=generator) < 0.4 for _ in range(2))
    mask = torch.arange(6) < torch.tensor([6, 3, 1, 5])[:, None]
    finished, whole = torch.tensor([True, False, True, False]), torch.randn(4, generator=generator).double()
    returns = token_returns(whole, bad, repeated, mask, finished, no_eos_penalty=2.0)
    for i in range(4):
        for k in range(6):
            later = sum(int(bad[i, s]) + int(repeated[i, s]) for s in range(k, 6) if mask[i, s])
            expected = float(whole[i]) - (0 if finished[i] else 2) - later if mask[i, k] else 0.0
            assert float(returns[i, k]) == pytest.approx(expected)


def test_padding_and_equal_captions(tokenizer):
    rollout = rollout_of(tokenizer, [TABLE_1, OTHERS[0], TABLE_1])
    bad, repeated = Penalties(tokenizer)(rollout)
    assert not bad[~rollout.mask].any()
    assert torch.equal(bad[0], bad[2])
    alone = Penalties(tokenizer)(rollout_of(tokenizer, [OTHERS[0]]))
    width = alone[0].shape[1]
    assert torch.equal(bad[1:2, :width], alone[0])
    assert torch.equal(repeated[1:2, :width], alone[1])
