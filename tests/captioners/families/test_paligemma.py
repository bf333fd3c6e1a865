"""PaliGemma: a prefix that sees itself in both directions, positions from 1, scaled embeddings, soft caps."""

import pytest
import torch

from pictures import images
from tellapart.captioners.families.paligemma import PaliGemma
from tellapart.types import Decoding
from tiny.paligemma import tiny_paligemma
from tiny_models import batch_of

VERSIONS = pytest.mark.parametrize("version", ["gemma", "gemma2"])


def given(captioner, count=2):
    """A rollout, and what the plain model makes of it: ids with captions, types, and all captions of one length."""
    batch = batch_of(captioner, count)
    rollout = captioner.generate(batch, Decoding(do_sample=True, max_new_tokens=8, min_new_tokens=8))
    inputs, shape = batch.inputs["captioner"], rollout.tokens.shape
    ids = torch.cat([inputs["input_ids"], rollout.tokens], dim=1)
    types = torch.cat([torch.zeros_like(inputs["input_ids"]), torch.ones(shape, dtype=torch.long)], dim=1)
    return rollout, {"input_ids": ids, "token_type_ids": types, "pixel_values": inputs["pixel_values"]}


def chosen(logits, rollout):
    count = rollout.tokens.shape[1]
    return logits[:, -count - 1 : -1].log_softmax(dim=-1).gather(-1, rollout.tokens[:, :, None]).squeeze(-1)


@VERSIONS
@pytest.mark.parametrize("share", [True, False])
def test_the_prefix_is_read_in_both_directions(version, share):
    captioner = tiny_paligemma(version=version)
    captioner.checkpoints_layers = not share
    rollout, plain = given(captioner)
    model, mask = captioner.family.model, torch.ones_like(plain["input_ids"])
    scores = captioner(rollout).logprobs
    wanted = chosen(model(**plain, attention_mask=mask).logits, rollout)
    torch.testing.assert_close(scores, wanted, atol=2e-5, rtol=0)
    plain.pop("token_type_ids")
    causal = chosen(model(**plain, attention_mask=mask).logits, rollout)
    assert (scores - causal).abs().max() > 0.05, "the prefix was read from left to right"


@VERSIONS
def test_positions_begin_at_one(version):
    """Rotations depend on differences only, so scores would not tell; the published models were trained this way."""
    captioner = tiny_paligemma(version=version)
    rollout, plain = given(captioner)
    seen = []
    rotary = captioner.family.model.model.language_model.rotary_emb
    rotary.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((*args, *kwargs.values())[1]), with_kwargs=True
    )
    captioner(rollout)
    captioner.family.model(**plain)
    calls = len(seen) // 3  # Gemma 2 has one for each kind of layer
    first, caption, whole = seen[::calls]
    assert first.tolist() == 2 * [whole[0, : first.shape[1]].tolist()]
    assert caption.view(2, -1).tolist() == 2 * [whole[0, first.shape[1] : -1].tolist()]
    assert whole[0, 0] == 1


@VERSIONS
def test_embeddings_are_scaled_and_image_states_are_not(version):
    captioner = tiny_paligemma(version=version)
    batch = batch_of(captioner, 2)
    family, encoded = captioner.family, captioner.encode(batch)
    words = family.prefix_embeddings(encoded)
    table, ids = family.model.lm_head.weight, batch.inputs["captioner"]["input_ids"]
    torch.testing.assert_close(words[:, 4:], table[ids[:, 4:]] * 32**0.5, atol=1e-5, rtol=0)
    features = family.model.get_image_features(batch.inputs["captioner"]["pixel_values"]).pooler_output
    torch.testing.assert_close(words[:, :4], features, atol=1e-5, rtol=0)


def test_gemma_2_squeezes_its_logits():
    captioner = tiny_paligemma(version="gemma2")
    rollout, _ = given(captioner)
    scores = captioner(rollout, want=["hidden", "logits"])
    raw = captioner.family.model.lm_head(scores.hidden)
    assert raw.abs().max() > 8 > scores.logits.abs().max()
    torch.testing.assert_close(scores.logits, 8 * torch.tanh(raw / 8))
    free = raw.log_softmax(dim=-1).gather(-1, rollout.tokens[:, :, None]).squeeze(-1)
    assert (free - scores.logprobs).abs().max() > 0.05
    assert torch.equal(
        tiny_paligemma().family.logits(scores.hidden), tiny_paligemma().family.model.lm_head(scores.hidden)
    )


def test_the_window_of_gemma_2_is_shorter_than_the_prefix():
    """So that a mask without it would show: captions at the end no longer see the prompt in every second layer."""
    captioner = tiny_paligemma(version="gemma2")
    rollout, _ = given(captioner)
    text = captioner.family.model.model.language_model
    assert "sliding_attention" in text.config.layer_types
    assert text.config.sliding_window < rollout.batch.inputs["captioner"]["input_ids"].shape[1]
    scores = captioner(rollout).logprobs
    text.config.sliding_window = 4096
    assert (captioner(rollout).logprobs - scores).abs().max() > 0.05


def test_the_prompt_is_written_as_published():
    captioner = tiny_paligemma()
    inputs = captioner.family.process(images(2))
    assert set(inputs) == {"pixel_values", "input_ids", "attention_mask"}
    row = captioner.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    assert row[:5] == ["<image>"] * 4 + ["<s>"]
    assert "".join(row[5:]) == f"{PaliGemma.default_prompt}\n".replace(" ", "▁")
    rows = captioner.tokenize(batch_of(captioner, 1), ["a red circle"], torch.zeros(1)).tokens[0].tolist()
    text = captioner.tokenizer("\na red circle", add_special_tokens=False)["input_ids"]
    assert text[1:] == rows[:-1]
