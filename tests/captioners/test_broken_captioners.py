"""Captioners that load and would not caption: weights that are not finite, ids of no word, sizes of no machine."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.listeners.loading import complete
from tellapart.model_size import estimate, require_possible
from tiny_models import batch_of, tiny_blip, tiny_ved


def changed(path, **values):
    content = json.loads(path.read_text())
    content.update(values)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    """``caption`` wrote 14 captions with them and ended with code 0."""
    tiny_ved(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "decoder.transformer.h.0.attn.c_attn.weight"
    weights[name].view(-1)[5] = value
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=rf"holds weights that are not finite, first .*{name}: restore or replace it"):
        HuggingFaceCaptioner.from_pretrained(tmp_path)


@pytest.mark.parametrize("token", [64, -1, 10**9])
def test_tokens_that_name_no_word_are_refused(tmp_path, token):
    """They ended in an IndexError."""
    tiny_ved(tmp_path)
    for name in ("config.json", "generation_config.json"):
        changed(tmp_path / name, decoder_start_token_id=token)
    told = rf"the start token's id is {token}, but the captioner knows ids from 0 to 63"
    with pytest.raises(UsageError, match=told):
        HuggingFaceCaptioner.from_pretrained(tmp_path)
    tiny_blip(tmp_path / "blip")
    config = json.loads((tmp_path / "blip" / "config.json").read_text())
    changed(tmp_path / "blip" / "config.json", text_config=config["text_config"] | {"bos_token_id": token})
    with pytest.raises(UsageError, match="the start token's id is"):
        HuggingFaceCaptioner.from_pretrained(tmp_path / "blip")


@pytest.mark.parametrize(
    "sizes",
    [{"n_layer": 10**9}, {"n_embd": 10**9}, {"vocab_size": 10**14}, {"n_positions": 10**13}, {"n_layer": 10**400}],
)
def test_sizes_of_no_machine_are_refused_before_anything_is_built(tmp_path, sizes, monkeypatch):
    """A billion layers took more than a minute and all memory."""
    tiny_ved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed(tmp_path / "config.json", decoder=config["decoder"] | sizes)
    monkeypatch.setattr(torch.nn.Module, "__init__", lambda *_: pytest.fail("a module was made"))
    for load in (HuggingFaceCaptioner.from_pretrained, lambda folder: complete(None, str(folder), "float32")):
        with pytest.raises(UsageError, match=r"correct its config\.json"):
            load(tmp_path)


@pytest.mark.parametrize(
    "values", [{"n_head": 0}, {"n_head": -1}, {"layer_norm_epsilon": None}, {"layer_norm_epsilon": "x"}]
)
def test_values_that_fail_where_they_are_used_are_refused_when_they_are_read(tmp_path, values):
    """They were read, and ended in a traceback at the first caption."""
    tiny_ved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed(tmp_path / "config.json", decoder=config["decoder"] | values)
    for load in (HuggingFaceCaptioner.from_pretrained, lambda folder: complete(None, str(folder), "float32")):
        with pytest.raises(UsageError, match=rf"has {next(iter(values))} .*: correct its config\.json"):
            load(tmp_path)


def test_the_estimate_is_about_right(tmp_path):
    """Within a factor of two of the parameters of GPT-2, ViT-L and Qwen2.5-VL-72B's text side."""
    gpt2 = {"n_layer": 12, "n_embd": 768, "vocab_size": 50257, "n_positions": 1024}
    vit = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096, "image_size": 336, "patch_size": 14}
    qwen = {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 29568, "vocab_size": 152064}
    for config, known in ((gpt2, 124e6), (vit, 304e6), (qwen, 72e9), ({"a": vit, "b": {"c": gpt2}}, 428e6)):
        assert known / 2 < estimate(config) < 2 * known
    require_possible(str(tmp_path))  # without a configuration: its loader tells


def test_human_captions_in_ids_that_the_model_does_not_know_are_refused(monkeypatch):
    """A tokenizer's vocabulary may be whole and another part of it still add ids; they ended in an IndexError."""
    captioner = tiny_ved()
    known, whole = captioner.family.vocab_size, captioner.text.tokenizer

    def beyond(texts, **options):
        found = whole(texts, **options)
        found["input_ids"][-1].append(known)
        return found

    monkeypatch.setattr(captioner.text, "tokenizer", beyond)
    with pytest.raises(
        UsageError, match=f"the tokenizer of the captioner gives the id {known}, but the model knows ids"
    ):
        captioner.tokenize(batch_of(captioner, 2), ["a dog", "a cat"], torch.arange(2))


def test_decoding_defaults_that_are_left_out_are_told(tmp_path, caplog):
    tiny_ved(tmp_path)
    HuggingFaceCaptioner.from_pretrained(tmp_path)
    assert not caplog.records
    changed(tmp_path / "generation_config.json", repetition_penalty=1.5, suppress_tokens=[7], num_beams=4)
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path)
    assert "generation_config has suppress_tokens [7], repetition_penalty 1.5, which is left out" in caplog.text
    assert captioner.family.model.generation_config.repetition_penalty in (None, 1.0)
