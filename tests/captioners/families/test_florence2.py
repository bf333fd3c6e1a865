"""Florence-2 against the model's own forward and generate, and its silent traps."""

from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoProcessor,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    GenerationConfig,
)

from pictures import CAPTIONS, images
from tellapart.captioners.adapters import LoraOptions, adapted_modules
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.families.florence2 import Florence2
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Decoding, Rollout
from tiny.florence2 import tiny_florence2
from tiny_models import batch_of

BEAMS = Decoding(num_beams=3, max_new_tokens=12)
prompts = pytest.mark.parametrize("prompt", ["<CAPTION>", "<DETAILED_CAPTION>", "a red star", ""])


def plain(folder, prompt, count):
    """Model and inputs as plain transformers makes them from a saved folder."""
    processor = Florence2Processor.from_pretrained(folder)
    inputs = processor(images=images(count), text=[prompt] * count, return_tensors="pt")
    return Florence2ForConditionalGeneration.from_pretrained(folder).eval(), inputs


def ragged(captioner, batch):
    """Drawn and human captions of different lengths, in no order."""
    drawn = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=12))
    human = captioner.tokenize(batch, ["", "a", CAPTIONS[3]], torch.tensor([1, 0, 1]))
    both = Rollout.concat([drawn, human])
    return both.select(torch.randperm(len(both)))


def own_logprobs(model, inputs, rollout):
    """By ids and pixels, caption for caption, after ``</s> <s>``."""
    found = torch.zeros(rollout.tokens.shape)
    for row, (image, tokens, length) in enumerate(zip(rollout.image, rollout.tokens, rollout.lengths, strict=True)):
        ids = torch.cat([torch.tensor([2, 0]), tokens[: length - 1]])[None]
        logits = model(**{name: value[image][None] for name, value in inputs.items()}, decoder_input_ids=ids).logits
        chosen = logits[0, 1:].log_softmax(dim=-1).gather(1, tokens[:length, None])
        found[row, :length] = chosen.squeeze(1)
    return found


@prompts
def test_the_contract_holds(prompt, tmp_path):
    captioner = tiny_florence2(tmp_path, prompt=prompt)
    check_captioner(captioner, batch_of(captioner, 3))


@prompts
def test_scores_are_those_of_the_models_own_forward(prompt, tmp_path):
    captioner = tiny_florence2(tmp_path, prompt=prompt)
    model, inputs = plain(tmp_path, prompt, 3)
    rollout = ragged(captioner, batch_of(captioner, 3))
    with torch.no_grad():
        theirs = own_logprobs(model, inputs, rollout)
        torch.testing.assert_close(captioner(rollout).logprobs, theirs, atol=1e-5, rtol=0)


@prompts
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"no_repeat_ngram_size": 2}], ids=str)
def test_captions_are_those_of_the_models_own_generate(prompt, settings, tmp_path):
    captioner = tiny_florence2(tmp_path, prompt=prompt)
    model, inputs = plain(tmp_path, prompt, 8)
    model.generation_config = GenerationConfig(
        eos_token_id=2, pad_token_id=1, decoder_start_token_id=2, max_new_tokens=12, do_sample=False, **settings
    )
    output = model.generate(**inputs, decoder_input_ids=torch.tensor([[2, 0]] * 8))
    theirs = [text.strip() for text in captioner.tokenizer.batch_decode(output, skip_special_tokens=True)]
    ours = captioner.generate(batch_of(captioner, 8), Decoding(max_new_tokens=12, **settings))
    assert ours.texts == theirs
    assert len(set(theirs)) > 2, "captions of one kind show little"


@prompts
def test_the_encoder_reads_what_the_processor_writes(prompt, tmp_path):
    captioner = tiny_florence2(tmp_path, prompt=prompt)
    _, inputs = plain(tmp_path, prompt, 2)
    encoded = captioner.encode(batch_of(captioner, 2))
    assert inputs["input_ids"][0].tolist() == [captioner.tokenizer.image_token_id] * 17 + captioner.family.words
    seen = captioner.family.project(encoded)
    assert seen.states.shape[1] == captioner.family.cross_length(encoded) == inputs["input_ids"].shape[1]
    assert seen.mask is None


@pytest.mark.parametrize("count", [1, 3])
def test_drawing_scoring_and_checkpointed_layers_agree(count, tmp_path):
    cached = tiny_florence2(tmp_path, train="all")
    whole = tiny_florence2(tmp_path, train="all", gradient_checkpointing=True)
    sampling = Decoding(do_sample=True, num_return_sequences=count, max_new_tokens=12)
    rollout, met = cached.draw(batch_of(cached, 4), sampling)
    weight = torch.randn(rollout.mask.shape)
    for captioner in (cached, whole):
        scored = captioner(rollout).logprobs
        torch.testing.assert_close(scored, met, atol=2e-5, rtol=0)
        (scored * weight).sum().backward()
    for (name, one), other in zip(cached.named_parameters(), whole.parameters(), strict=True):
        scale = one.grad.abs().max().clamp(min=1e-2)
        assert float((one.grad - other.grad).abs().max() / scale) < 1e-3, name


@pytest.mark.parametrize("train", ["decoder", "all"])
def test_everything_that_trains_gets_a_gradient(train, tmp_path):
    captioner = tiny_florence2(tmp_path, train=train)
    captioner(ragged(captioner, batch_of(captioner, 3))).logprobs.sum().backward()
    for name, parameter in captioner.family.model.named_parameters():
        frozen = train == "decoder" and name.startswith("model.vision_tower.")
        assert parameter.requires_grad != frozen, name
        assert (parameter.grad is None) == frozen, name


def test_encoding_holds_nothing_that_trains_with_the_text_side(tmp_path):
    """States are kept while the decoder learns: projector, positions and encoder must not be in them."""
    captioner = tiny_florence2(tmp_path)
    batch = batch_of(captioner, 2)
    rollout, before = ragged(captioner, batch), captioner.encode(batch)
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
        assert torch.equal(captioner.encode(batch).states, before.states)
        assert torch.equal(captioner(rollout, encoded=before).logprobs, captioner(rollout).logprobs)


def test_adapters_sit_in_the_text_side_and_leave_the_base_as_it_is(tmp_path):
    from peft import PeftModel

    captioner = tiny_florence2(tmp_path / "base", lora=LoraOptions(r=2))
    names = adapted_modules(captioner.family.model)
    # Two layers each: self-attention of the encoder, self- and cross-attention of the decoder; two projections.
    assert len(names) == 12
    assert all(name.startswith("model.language_model.") for name in names)
    rollout = ragged(captioner, batch_of(captioner, 3))
    with torch.no_grad():
        base = captioner(rollout).logprobs
        for parameter in captioner.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
        assert float((captioner(rollout).logprobs - base).abs().max()) > 1e-2
        with captioner.network.disable_adapter():
            assert torch.equal(captioner(rollout).logprobs, base)
    captioner.save(tmp_path / "adapter")
    model, inputs = plain(tmp_path / "base", "<CAPTION>", 3)
    adapted = PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    with torch.no_grad():
        theirs = own_logprobs(adapted.get_base_model(), inputs, rollout)
        torch.testing.assert_close(captioner(rollout).logprobs, theirs, atol=1e-5, rtol=0)
    with pytest.raises(UsageError, match=r"'model\.vision_tower\..*qkv' in the image tower"):
        tiny_florence2(tmp_path / "other", lora=LoraOptions(target_modules=r".*\.(qkv|q_proj)"))


def test_a_saved_folder_works_without_arguments_in_plain_transformers(tmp_path):
    """Plain ``generate`` forces BOS and counts it as a new token, and as one token of the length that beams divide by."""
    captioner = tiny_florence2(train="all", prompt="<DETAILED_CAPTION>")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    captioner.save(tmp_path)
    model, inputs = plain(tmp_path, "<DETAILED_CAPTION>", 6)
    processor = AutoProcessor.from_pretrained(tmp_path)
    batch = batch_of(captioner, 6)
    beams = Decoding(num_beams=3, max_new_tokens=12, length_penalty=0.0)
    for decoding, settings in ((Decoding(max_new_tokens=12), {}), (beams, {"num_beams": 3, "length_penalty": 0.0})):
        output = model.generate(**inputs, max_new_tokens=13, **settings)
        assert (output[:, :2] == torch.tensor([2, 0])).all()
        ours = captioner.generate(batch, decoding).texts
        assert [text.strip() for text in processor.batch_decode(output, skip_special_tokens=True)] == ours
        assert len(set(ours)) > 1
    again = HuggingFaceCaptioner.from_pretrained(tmp_path).eval()
    assert again.family.prompt == "<DETAILED_CAPTION>"
    assert again.generate(batch, BEAMS).texts == captioner.generate(batch, BEAMS).texts


def test_decoding_defaults_of_a_checkpoint_do_not_leak(tmp_path):
    captioner = tiny_florence2(tmp_path)
    model, _ = plain(tmp_path, "<CAPTION>", 1)
    model.generation_config.update(num_beams=3, no_repeat_ngram_size=3, forced_eos_token_id=2, early_stopping=True)
    model.save_pretrained(tmp_path)
    kept = HuggingFaceCaptioner.from_pretrained(tmp_path).family.model.generation_config
    assert [kept.num_beams, kept.no_repeat_ngram_size, kept.forced_eos_token_id] == [None, None, None]
    assert [kept.decoder_start_token_id, kept.forced_bos_token_id, kept.eos_token_id, kept.pad_token_id] == [2, 0, 2, 1]
    assert captioner.family.start == [2, 0]


def test_human_captions_begin_without_bos_and_without_a_space(tmp_path):
    """BOS is forced, so it is no part of a caption: its log-probability is none of the caption's."""
    captioner = tiny_florence2(tmp_path)
    rollout = captioner.tokenize(batch_of(captioner, 1), ["a red circle"], torch.tensor([0]))
    whole = captioner.tokenizer("a red circle")["input_ids"]
    assert [0, *rollout.tokens[0].tolist()] == whole
    assert captioner.family.caption_lead == ""
    assert captioner.tokenizer.convert_ids_to_tokens(whole)[1] == "a"


def test_feature_maps_that_are_not_square_keep_their_shape(tmp_path):
    """Positions are added in two dimensions, to states that are kept in one."""
    captioner = tiny_florence2(tmp_path)
    model, family = captioner.family.model, captioner.family
    pixels = torch.randn(2, 3, 32, 64)
    with torch.no_grad():
        encoded = family.encode({"pixel_values": pixels})
        words = model.get_input_embeddings()(torch.tensor([family.words] * 2))
        read = torch.cat([model.get_image_features(pixels).pooler_output, words], dim=1)
        theirs = model.model.language_model.encoder(inputs_embeds=read).last_hidden_state
        assert encoded.states.shape[1] == 4 * 8
        torch.testing.assert_close(family.project(encoded).states, theirs, atol=1e-5, rtol=0)


def test_the_image_token_in_a_caption_is_only_a_word(tmp_path):
    captioner = tiny_florence2(tmp_path)
    batch = batch_of(captioner, 2)
    tokens = torch.tensor([[5, captioner.tokenizer.image_token_id, 2]] * 2)
    done = torch.ones(2, dtype=torch.bool)
    rollout = Rollout(batch, torch.arange(2), [""] * 2, tokens, torch.ones_like(tokens, dtype=torch.bool), done)
    model, inputs = plain(tmp_path, "<CAPTION>", 2)
    with torch.no_grad():
        theirs = own_logprobs(model, inputs, rollout)
        torch.testing.assert_close(captioner(rollout).logprobs, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_drawing_needs_no_particular_attention(attention, tmp_path):
    """The decoder reads the mean and the prompt besides the tower's states, also in cached steps."""
    captioner = tiny_florence2(tmp_path)
    captioner.family.model.set_attn_implementation(attention)
    rollout, met = captioner.draw(batch_of(captioner, 3), Decoding(max_new_tokens=8))
    model, inputs = plain(tmp_path, "<CAPTION>", 3)
    with torch.no_grad():
        torch.testing.assert_close(met, own_logprobs(model, inputs, rollout), atol=1e-5, rtol=0)


def test_prompts_that_cannot_be_taken(tmp_path):
    with pytest.raises(UsageError, match=r"cannot take the prompt '<CAPTION> please'.*: give one task"):
        tiny_florence2(tmp_path, prompt="<CAPTION> please")
    model = SimpleNamespace(config=tiny_florence2().family.model.config)
    with pytest.raises(UsageError, match="needs its processor"):
        Florence2(model, SimpleNamespace(tokenizer=tiny_florence2().tokenizer, joint=None))


def test_half_precision_passes(tmp_path):
    captioner = tiny_florence2(tmp_path, dtype="bfloat16")
    check_captioner(captioner, batch_of(captioner, 2))
