"""InstructBLIP with OPT, T5 and a Llama against the model's own forward and generate, and its silent traps."""

from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, InstructBlipForConditionalGeneration, InstructBlipProcessor

from pictures import CAPTIONS, images
from tellapart.captioners.adapters import LoraOptions, adapted_modules
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.families.instructblip import InstructBlipDecoder
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Decoding, Rollout
from tiny.instructblip import PROMPT, tiny_instructblip
from tiny_models import batch_of

languages = pytest.mark.parametrize("language", ["opt", "t5", "llama"])


def make(folder, **options):
    """A model whose captions differ in words and length."""
    return tiny_instructblip(folder, **{"prompt": PROMPT, "seed": 1, **options})


def plain(folder, prompt=PROMPT, count=3):
    """Model and inputs as plain transformers makes them from a saved folder."""
    processor = InstructBlipProcessor.from_pretrained(folder)
    inputs = processor(images=images(count), text=[prompt] * count, return_tensors="pt")
    return InstructBlipForConditionalGeneration.from_pretrained(folder).eval(), inputs


def ragged(captioner, batch):
    """Drawn and human captions of different lengths, in no order.

    The model itself cannot read a caption in which the image token was drawn; such captions are left out.
    """
    drawn = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=12))
    human = captioner.tokenize(batch, ["", "a", CAPTIONS[3]], torch.tensor([1, 0, 1]))
    both = Rollout.concat([drawn, human])
    order = torch.randperm(len(both))
    return both.select(order[(both.tokens[order] != captioner.family.model.config.image_token_index).all(dim=1)])


def own_logprobs(model, inputs, rollout):
    """By ids and pixels, caption for caption."""
    found = torch.zeros(rollout.tokens.shape)
    for row, (image, tokens, length) in enumerate(zip(rollout.image, rollout.tokens, rollout.lengths, strict=True)):
        given = {name: value[image][None] for name, value in inputs.items()}
        tokens = tokens[:length]
        if model.config.use_decoder_only_language_model:
            before = given["input_ids"].shape[1]
            given["input_ids"] = torch.cat([given["input_ids"], tokens[None]], dim=1)
            given["attention_mask"] = torch.ones_like(given["input_ids"])
            logits = model(**given).logits[0, before - 1 : -1]
        else:
            words = torch.cat([torch.tensor([0]), tokens[:-1]])
            logits = model(**given, decoder_input_ids=words[None]).logits[0]
        found[row, :length] = logits.log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)
    return found


@languages
@pytest.mark.parametrize("prompt", [PROMPT, "a red", ""])
def test_scores_are_those_of_the_models_own_forward(language, prompt, tmp_path):
    captioner = make(tmp_path, language=language, prompt=prompt)
    model, inputs = plain(tmp_path, prompt)
    batch = batch_of(captioner, 3)
    check_captioner(captioner, batch)
    rollout = ragged(captioner, batch)
    with torch.no_grad():
        theirs = own_logprobs(model, inputs, rollout)
        torch.testing.assert_close(captioner(rollout).logprobs, theirs, atol=1e-5, rtol=0)


@languages
@pytest.mark.parametrize("num_beams", [1, 3])
def test_captions_are_those_of_the_models_own_generate(language, num_beams, tmp_path):
    captioner = make(tmp_path, language=language)
    model, inputs = plain(tmp_path, count=8)
    neutral = GenerationConfig(
        num_beams=num_beams, max_new_tokens=10, eos_token_id=3, pad_token_id=0, decoder_start_token_id=0
    )
    model.generation_config = model.language_model.generation_config = neutral
    output = model.generate(**inputs, generation_config=neutral)
    output = output[:, 1 if language == "t5" else inputs["input_ids"].shape[1] :]
    theirs = [text.strip() for text in captioner.tokenizer.batch_decode(output, skip_special_tokens=True)]
    assert captioner.generate(batch_of(captioner, 8), Decoding(num_beams=num_beams, max_new_tokens=10)).texts == theirs
    assert len(set(theirs)) > 2


@languages
@pytest.mark.parametrize("count", [1, 3])
def test_drawing_scoring_and_checkpointed_layers_agree(language, count, tmp_path):
    cached = make(tmp_path, language=language, train="all")
    whole = make(tmp_path, language=language, train="all", gradient_checkpointing=True)
    sampling = Decoding(do_sample=True, num_return_sequences=count, max_new_tokens=12)
    rollout, met = cached.draw(batch_of(cached, 4), sampling)
    weight = torch.randn(rollout.mask.shape)
    for captioner in (cached, whole):
        scored = captioner(rollout).logprobs
        torch.testing.assert_close(scored, met, atol=2e-5, rtol=0)
        (scored * weight).sum().backward()
    for (name, one), other in zip(cached.named_parameters(), whole.parameters(), strict=True):
        assert one.requires_grad == (one.grad is not None), name
        if one.requires_grad:
            scale = one.grad.abs().max().clamp(min=1e-2)
            assert float((one.grad - other.grad).abs().max() / scale) < 1e-3, name


@languages
@pytest.mark.parametrize("train", ["decoder", "all"])
def test_everything_that_trains_gets_a_gradient_that_is_not_zero(language, train, tmp_path):
    """The last layer of the Q-Former also rewrites the prompt, which nobody reads: gradients of zero, and weight decay."""
    captioner = make(tmp_path, language=language, train=train)
    captioner(ragged(captioner, batch_of(captioner, 3))).logprobs.sum().backward()
    idle = [f"qformer.encoder.layer.1.{part}" for part in ("intermediate.", "output.")]
    for name, parameter in captioner.family.model.named_parameters():
        frozen = name.startswith(tuple(idle)) or (train == "decoder" and name.startswith("vision_model."))
        assert parameter.requires_grad != frozen, name
        assert (parameter.grad is None) == frozen, name
        if not frozen and not name.endswith(("key.bias", "k_proj.bias")):
            assert bool(parameter.grad.any()), name


@languages
def test_adapters_sit_in_the_language_model_only(language, tmp_path):
    from peft import PeftModel

    captioner = make(tmp_path / "base", language=language, lora=LoraOptions(r=2))
    names = adapted_modules(captioner.family.model)
    assert names
    assert all(name.startswith("language_model.") for name in names)
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
    model, inputs = plain(tmp_path / "base")
    adapted = PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    with torch.no_grad():
        theirs = own_logprobs(adapted.get_base_model(), inputs, rollout)
        torch.testing.assert_close(captioner(rollout).logprobs, theirs, atol=1e-5, rtol=0)


@languages
def test_a_saved_folder_is_read_by_plain_transformers_and_by_us(language, tmp_path):
    captioner = make(None, language=language, train="all")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    captioner.save(tmp_path)
    model, inputs = plain(tmp_path)
    output = model.generate(**inputs, num_beams=3, max_new_tokens=12)
    output = output[:, 1 if language == "t5" else inputs["input_ids"].shape[1] :]
    batch, beams = batch_of(captioner, 3), Decoding(num_beams=3, max_new_tokens=12)
    ours = captioner.generate(batch, beams).texts
    assert [text.strip() for text in captioner.tokenizer.batch_decode(output, skip_special_tokens=True)] == ours
    assert len(set(ours)) > 1
    again = HuggingFaceCaptioner.from_pretrained(tmp_path).eval()
    assert again.family.prompt == PROMPT
    assert again.generate(batch, beams).texts == ours


@languages
def test_the_q_former_reads_the_prompt_too(language, tmp_path):
    captioner = make(tmp_path, language=language)
    encoded = captioner.encode(batch_of(captioner, 2))
    with torch.no_grad():
        asked = captioner.family.queried(encoded)
        captioner.family.question = [2, 3]
        assert float((captioner.family.queried(encoded) - asked).abs().max()) > 1e-2


def test_an_image_token_in_a_caption_is_only_a_word(tmp_path):
    """By ids the model would look for states to put in its place."""
    captioner = make(tmp_path, language="llama")
    rollout = captioner.tokenize(batch_of(captioner, 2), ["a red circle", "a red star"], torch.arange(2))
    rollout.tokens[:, 1] = captioner.family.image_token
    logits = captioner(rollout, want=["logits"]).logits
    # What comes before it is scored as ever, what comes after it differs from what followed the word.
    assert torch.isfinite(logits[rollout.mask]).all()
    met = rollout.tokens.clone()
    met[:, 1] = 10
    other = captioner(
        Rollout(rollout.batch, rollout.image, rollout.texts, met, rollout.mask, rollout.finished), want=["logits"]
    )
    torch.testing.assert_close(other.logits[:, :2], logits[:, :2])
    assert float((other.logits[:, 2] - logits[:, 2]).detach().abs().max()) > 1e-2


def test_captions_are_written_as_after_the_prompt(tmp_path):
    """Vicuna's tokenizer puts a space before every text: another one would make words that its captions never hold."""
    captioner = make(tmp_path, language="llama")
    tokens = captioner.tokenize(batch_of(captioner, 1), ["a red circle"], torch.tensor([0])).tokens[0].tolist()
    whole = captioner.tokenizer(f"{PROMPT} a red circle")["input_ids"]
    assert captioner.family.words + tokens[:-1] == whole
    assert tokens[-1] == 3


def test_the_default_prompt_and_a_missing_processor(tmp_path):
    captioner = tiny_instructblip(tmp_path)
    assert captioner.family.prompt == "A short image description:"
    with pytest.raises(UsageError, match="needs its processor"):
        InstructBlipDecoder(captioner.family.model, SimpleNamespace(tokenizer=captioner.tokenizer, joint=None))


@languages
def test_half_precision_passes(language, tmp_path):
    captioner = make(tmp_path, language=language, dtype="bfloat16")
    check_captioner(captioner, batch_of(captioner, 2))
