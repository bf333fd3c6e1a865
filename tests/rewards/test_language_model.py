"""Log-probabilities of texts under a language model, against transformers' own loss of one text at a time."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

from given import double, vector
from tellapart.errors import UsageError
from tellapart.rewards.language_model import LanguageModel, MeanLogProbability, TextScores
from tellapart.types import Batch, Rollout
from tiny.language_models import FAMILIES, saved, tiny_language_model
from tiny_models import bert_tokenizer

TEXTS = [
    "a red star on a table",
    "a",
    "Two dogs, on a table; and a moon!",
    "  a red star on a table\n",
    "é ☃",
    "a blue ring a blue ring a blue ring a blue ring",
]


def by_loss(model, tokenizer, text: str, *, end: bool) -> tuple[float, int]:
    """Sum of log-probabilities and number of tokens, from the mean loss that the model itself computes of one row."""
    start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    ids = [start, *tokenizer.encode(text.strip(), add_special_tokens=False)]
    ids += [tokenizer.eos_token_id] if end else []
    row = torch.tensor([ids])
    with torch.no_grad():
        loss = model(input_ids=row, labels=row).loss
    return -float(loss) * (len(ids) - 1), len(ids) - 1


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sums_are_those_of_the_models_own_loss(family, side):
    model, tokenizer = tiny_language_model(family)
    tokenizer.padding_side = side
    scored = LanguageModel(model, tokenizer)
    for end in (False, True):
        found = scored.score(TEXTS, end=end)
        expected = [by_loss(model, tokenizer, text, end=end) for text in TEXTS]
        assert found.tokens.tolist() == [count for _, count in expected]
        torch.testing.assert_close(
            found.logprobs, torch.tensor([total for total, _ in expected], dtype=torch.float64), rtol=1e-5, atol=1e-4
        )
        assert found.logprobs[0] == found.logprobs[3]
    # the wide weights tell tokens apart: a score that is shifted by one token or misses the first would show
    assert len({round(value, 2) for value in found.mean().tolist()}) >= len(set(map(str.strip, TEXTS)))


@pytest.mark.parametrize("family", FAMILIES)
def test_how_texts_are_batched_changes_no_score(family):
    model, tokenizer = tiny_language_model(family)
    whole = LanguageModel(model, tokenizer).score(TEXTS)
    for tokens_at_once in (1, 40):
        small = LanguageModel(model, tokenizer, tokens_at_once=tokens_at_once).score(TEXTS)
        torch.testing.assert_close(small.logprobs, whole.logprobs, rtol=1e-5, atol=1e-4)
    backwards = LanguageModel(model, tokenizer).score(TEXTS[::-1])
    torch.testing.assert_close(backwards.logprobs.flip(0), whole.logprobs, rtol=1e-5, atol=1e-4)
    mixed = LanguageModel(model, tokenizer).score([TEXTS[0]] * 2, end=[False, True])
    assert mixed.logprobs[0] == pytest.approx(float(whole.logprobs[0]), abs=1e-4)
    assert mixed.logprobs[1] == pytest.approx(by_loss(model, tokenizer, TEXTS[0], end=True)[0], abs=1e-4)


def test_each_distinct_text_is_read_once_and_in_passes_of_a_limited_size(monkeypatch):
    model, tokenizer = tiny_language_model("gpt2")
    scored, shapes, forward = LanguageModel(model, tokenizer, tokens_at_once=64), [], model.forward

    def counted(*, input_ids, **options):
        shapes.append(tuple(input_ids.shape))
        assert not torch.is_grad_enabled()
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(model, "forward", counted)
    texts = [f"a red star {i}" for i in range(20)]
    assert len(scored.score(texts * 3).logprobs) == 60
    assert sum(rows for rows, _ in shapes) == 20
    assert all(rows * width <= 64 for rows, width in shapes)


def test_a_chunk_of_logits_at_a_time_gives_the_same(monkeypatch):
    model, tokenizer = tiny_language_model("opt")
    whole = LanguageModel(model, tokenizer).score(TEXTS)
    monkeypatch.setattr("tellapart.rewards.language_model.LOGITS_AT_ONCE", 3 * 300)
    torch.testing.assert_close(LanguageModel(model, tokenizer).score(TEXTS).logprobs, whole.logprobs)


def test_a_tokenizer_without_bos_starts_with_eos_and_one_without_either_leaves_the_first_token_out():
    model, tokenizer = tiny_language_model("llama")
    tokenizer.bos_token = None
    found = LanguageModel(model, tokenizer).score(TEXTS)
    assert found.logprobs[0] == pytest.approx(by_loss(model, tokenizer, TEXTS[0], end=False)[0], abs=1e-4)
    tokenizer.eos_token = None
    bare = LanguageModel(model, tokenizer)
    assert bare.score(TEXTS).tokens.tolist() == [count - 1 for count in found.tokens.tolist()]
    with pytest.raises(UsageError, match="has no end token"):
        bare.score(TEXTS, end=True)


def test_empty_texts_and_none():
    scored = LanguageModel(*tiny_language_model("gpt2"))
    found = scored.score(["", " "])
    assert found.tokens.tolist() == [0, 0]
    assert found.logprobs.tolist() == [0.0, 0.0]
    assert found.mean().isnan().all()
    assert scored.score([""], end=True).tokens.tolist() == [1]
    assert scored.score([]).logprobs.shape == (0,)


def test_a_text_too_long_is_cut_with_a_warning(caplog):
    model, tokenizer = tiny_language_model("gpt2", positions=8)
    scored = LanguageModel(model, tokenizer)
    with caplog.at_level(logging.WARNING):
        found = scored.score([TEXTS[2], TEXTS[1]])
    assert found.tokens.tolist()[0] == 7
    assert "1 of 2 texts are longer than 8 tokens" in caplog.text


def test_the_reward_is_the_mean_of_a_captions_tokens():
    """The vector ``vlrm_ref_term`` (VLRM, section 3.4)."""
    inputs, expected, tolerance = vector("vlrm_ref_term")
    logprobs, mask = double(inputs["ref_model_logp"]), double(inputs["mask"])
    scores = TextScores((logprobs * mask).sum(1), mask.sum(1).long())
    assert scores.mean().tolist() == pytest.approx(expected["ref"], abs=tolerance)
    assert (-scores.mean()).exp().tolist() == pytest.approx(expected["perplexity"], abs=tolerance)


def test_the_reward_counts_the_end_of_captions_that_ended():
    model, tokenizer = tiny_language_model("opt")
    scored = LanguageModel(model, tokenizer)
    texts, finished = [TEXTS[0], TEXTS[0], "", ""], torch.tensor([True, False, True, False])
    count = len(texts)
    drawn = Rollout(
        Batch(["x"], [[]]),
        torch.zeros(count).long(),
        texts,
        torch.zeros(count, 1).long(),
        torch.ones(count, 1).bool(),
        finished,
    )
    rewards = MeanLogProbability(scored)(drawn)
    ended, cut = (by_loss(model, tokenizer, TEXTS[0], end=end) for end in (True, False))
    nothing = by_loss(model, tokenizer, "", end=True)[0]
    want = [ended[0] / ended[1], cut[0] / cut[1], nothing, nothing]
    assert rewards.tolist() == pytest.approx(want, abs=1e-5)
    assert rewards.dtype == torch.float32
    assert not rewards.requires_grad
    plain = MeanLogProbability(scored, end=False)(drawn)
    assert plain.tolist() == pytest.approx([want[1], want[1], nothing, nothing], abs=1e-5)


def test_reading_from_a_folder(tmp_path):
    folder = saved(tmp_path / "small-gpt2")
    scored = LanguageModel.from_pretrained(folder)
    model, tokenizer = tiny_language_model("gpt2")
    assert torch.equal(scored.score(TEXTS).logprobs, LanguageModel(model, tokenizer).score(TEXTS).logprobs)
    assert scored.identity() == f"small-gpt2 [{scored.fingerprint()[:12]}, float32]"
    other = LanguageModel(*tiny_language_model("gpt2", seed=1))
    assert scored.fingerprint() == LanguageModel(model, tokenizer).fingerprint() != other.fingerprint()
    half = LanguageModel.from_pretrained(folder, dtype="bfloat16")
    assert half.identity().endswith("bfloat16]")
    torch.testing.assert_close(half.score(TEXTS).mean(), scored.score(TEXTS).mean(), rtol=0.05, atol=0.05)
    assert not any(weight.requires_grad for weight in scored.model.parameters())


def test_what_is_no_causal_language_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        LanguageModel.from_pretrained(tmp_path / "nothing")
    with pytest.raises(UsageError, match="cannot be loaded"):
        LanguageModel.from_pretrained(tmp_path)
    tokenizer = bert_tokenizer(TEXTS)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    masked = BertLMHeadModel(config)
    for parameter in masked.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    with pytest.raises(UsageError, match="reads ahead"):
        LanguageModel(masked, tokenizer, name="bert")
    model, words = tiny_language_model("gpt2")
    words.add_tokens(["brandnew"])
    with pytest.raises(UsageError, match="301 tokens but its model 300"):
        LanguageModel(model, words)
