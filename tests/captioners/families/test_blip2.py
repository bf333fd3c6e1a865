"""BLIP-2 with OPT and T5 against the model's own forward and generate, and its silent traps."""

import json

import pytest
import torch
from transformers import Blip2ForConditionalGeneration, Blip2Processor, GenerationConfig

from pictures import images
from tellapart.captioners.adapters import LoraOptions, adapted_modules
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Decoding, Rollout
from tiny.blip2 import PROMPT, tiny_blip2
from tiny_models import batch_of

languages = pytest.mark.parametrize("language", ["opt", "t5"])
prompts = pytest.mark.parametrize("prompt", ["", PROMPT])


def plain(folder):
    """The saved model and processor in plain transformers, and the inputs of two pictures with a prompt."""
    return Blip2ForConditionalGeneration.from_pretrained(folder).eval(), Blip2Processor.from_pretrained(folder)


def inputs_of(processor, prompt, count=2):
    return processor(images=images(count), text=[prompt] * count, return_tensors="pt")


def caption(captioner, batch):
    rollout = captioner.tokenize(batch, ["a red circle on a table", "a blue star on a table"], torch.arange(2))
    assert torch.equal(rollout.mask, torch.ones_like(rollout.mask))
    return rollout


@languages
@prompts
def test_scores_are_those_of_the_models_own_forward(language, prompt, tmp_path):
    captioner = tiny_blip2(tmp_path, language=language, prompt=prompt)
    model, processor = plain(tmp_path)
    inputs, batch = inputs_of(processor, prompt), batch_of(captioner, 2)
    rollout = caption(captioner, batch)
    with torch.no_grad():
        ours = captioner(rollout).logprobs
        if language == "opt":
            ids = torch.cat([inputs["input_ids"], rollout.tokens], dim=1)
            logits = model(
                pixel_values=inputs["pixel_values"], input_ids=ids, attention_mask=torch.ones_like(ids)
            ).logits
            logits = logits[:, inputs["input_ids"].shape[1] - 1 : -1]
        else:
            start = torch.zeros(2, 1, dtype=torch.long)
            logits = model(**inputs, decoder_input_ids=torch.cat([start, rollout.tokens[:, :-1]], dim=1)).logits
    theirs = logits.log_softmax(dim=-1).gather(2, rollout.tokens[:, :, None]).squeeze(2)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@languages
@prompts
@pytest.mark.parametrize(("num_beams", "size"), [(1, 0), (3, 0), (1, 1), (3, 2)])
def test_captions_are_those_of_the_models_own_generate(language, prompt, num_beams, size, tmp_path):
    captioner = tiny_blip2(tmp_path, language=language, prompt=prompt, eos_logit=1.5)
    model, processor = plain(tmp_path)
    inputs, batch = inputs_of(processor, prompt), batch_of(captioner, 2)
    settings = {"num_beams": num_beams, "max_new_tokens": 10, "no_repeat_ngram_size": size}
    neutral = GenerationConfig(eos_token_id=3, pad_token_id=0, decoder_start_token_id=0, **settings)
    for part in (model, model.language_model):
        part.generation_config = neutral
    sequences = model.generate(**inputs, generation_config=neutral)
    sequences = sequences[:, inputs["input_ids"].shape[1] if language == "opt" else 1 :]
    theirs = [processor.tokenizer.decode(row, skip_special_tokens=True).strip() for row in sequences]
    ours = captioner.generate(batch, Decoding(**settings)).texts
    assert ours == theirs
    assert any(ours), "a test on empty captions shows nothing"


@languages
def test_cached_and_checkpointed_scoring_agree(language, tmp_path):
    """One goes through the prefix and a cache, the other through whole sequences."""
    cached = tiny_blip2(tmp_path, language=language, train="all")
    whole = tiny_blip2(tmp_path, language=language, train="all", gradient_checkpointing=True)
    batch = batch_of(cached, 2)
    rollout = cached.generate(batch, Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=8))
    rollout = Rollout.concat([rollout, caption(cached, batch)])
    one, other = cached(rollout).logprobs, whole(rollout).logprobs
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    one.sum().backward()
    other.sum().backward()
    for (name, p), (_, q) in zip(cached.named_parameters(), whole.named_parameters(), strict=True):
        assert p.grad is not None, name
        torch.testing.assert_close(p.grad, q.grad, atol=1e-3, rtol=1e-3, msg=name)


@languages
def test_everything_but_the_tower_learns(language, tmp_path):
    captioner = tiny_blip2(tmp_path, language=language)
    captioner(caption(captioner, batch_of(captioner, 2))).logprobs.sum().backward()
    for name, parameter in captioner.family.model.named_parameters():
        assert (parameter.grad is None) == name.startswith("vision_model."), name
    learning = {name.split(".")[0] for name, p in captioner.family.model.named_parameters() if p.requires_grad}
    assert learning == {"query_tokens", "qformer", "language_projection", "language_model"}


@languages
def test_adapters_sit_in_the_language_model_only(language, tmp_path):
    captioner = tiny_blip2(tmp_path, language=language, lora=LoraOptions(r=2))
    names = adapted_modules(captioner.family.model)
    assert names
    assert all(name.startswith("language_model.") for name in names)
    with pytest.raises(UsageError, match="image tower"):
        tiny_blip2(tmp_path, language=language, lora=LoraOptions(target_modules=r".*\.(qkv|q_proj|q)"))


@languages
def test_the_prompt_matters_and_is_kept(language, tmp_path):
    asked = tiny_blip2(tmp_path / "asked", language=language, prompt="a photo of a red")
    bare = tiny_blip2(tmp_path / "bare", language=language, prompt="")
    batch = batch_of(bare, 2)
    rollout = caption(bare, batch)
    assert float((asked(rollout).logprobs - bare(rollout).logprobs).abs().max()) > 1e-2
    bare.family.lockstep, bare.family.reads_parts = True, False  # as in shards
    bare.set_prompt("a photo of a red")
    assert (bare.family.lockstep, bare.family.reads_parts) == (True, False)
    torch.testing.assert_close(asked(rollout).logprobs, bare(rollout).logprobs)
    asked.save(tmp_path / "kept")
    kept = type(asked).from_pretrained(tmp_path / "kept").eval()
    assert kept.family.prompt == "a photo of a red"
    torch.testing.assert_close(kept(rollout).logprobs, asked(rollout).logprobs)


def test_a_caption_follows_a_prompt_after_a_space(tmp_path):
    assert tiny_blip2(tmp_path, prompt=PROMPT).family.caption_lead == " "
    assert tiny_blip2(tmp_path, prompt="").family.caption_lead == ""


def test_a_query_token_in_a_caption_is_only_a_word(tmp_path):
    """By ids, a drawn image token would be replaced by image states; captions are embedded apart from the prompt."""
    captioner = tiny_blip2(tmp_path)
    batch = batch_of(captioner, 2)
    rollout = caption(captioner, batch)
    tokens = rollout.tokens.clone()
    tokens[:, 1] = captioner.family.image_token
    odd = Rollout(batch, rollout.image, rollout.texts, tokens, rollout.mask, rollout.finished)
    assert torch.isfinite(captioner(odd).logprobs).all()


@languages
def test_half_precision_passes(language, tmp_path):
    captioner = tiny_blip2(tmp_path, language=language, dtype="bfloat16")
    check_captioner(captioner, batch_of(captioner, 2))


def test_a_checkpoint_that_does_not_name_the_query_token_has_it_in_its_tokenizer(tmp_path):
    """Older ones; drawing ended in a traceback."""
    captioner = tiny_blip2(tmp_path, language="opt")
    batch = batch_of(captioner, 2)
    expected = captioner.generate(batch, Decoding(max_new_tokens=5)).texts
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("image_token_index", "image_token_id"):
        config.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path, prompt=captioner.family.prompt).eval()
    assert loaded.family.model.config.image_token_index is None
    assert loaded.generate(batch, Decoding(max_new_tokens=5)).texts == expected
