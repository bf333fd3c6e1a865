"""GIT against the model's own forward and generate, and its silent traps."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer, GenerationConfig, GitForCausalLM

from pictures import CAPTIONS, images
from tellapart.captioners.adapters import LoraOptions, adapted_modules
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.families.git import Git
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Decoding, Rollout
from tiny.git import tiny_git
from tiny_models import batch_of

BEAMS = Decoding(num_beams=3, max_new_tokens=12)
prompts = pytest.mark.parametrize("prompt", ["", "a red"])


def make(folder, **options):
    """A model whose captions differ in words and length."""
    return tiny_git(folder, **{"seed": 2, "eos_logit": 2.0, **options})


def pixels_of(batch):
    return batch.inputs["captioner"]["pixel_values"]


def ragged(captioner, batch):
    """Drawn and human captions of different lengths, in no order."""
    drawn = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=12))
    human = captioner.tokenize(batch, ["", "a", CAPTIONS[3]], torch.tensor([1, 0, 1]))
    both = Rollout.concat([drawn, human])
    return both.select(torch.randperm(len(both)))


def own_logprobs(model, rollout, start):
    """By ids and pixels, caption for caption; the image's own positions come first in the logits."""
    found = torch.zeros(rollout.tokens.shape)
    states = model.git.encoder.layer[0].attention.self.image_patch_tokens
    for row, (image, tokens, length) in enumerate(zip(rollout.image, rollout.tokens, rollout.lengths, strict=True)):
        ids = torch.cat([torch.tensor(start), tokens[: length - 1]])[None]
        logits = model(input_ids=ids, pixel_values=pixels_of(rollout.batch)[image][None]).logits[0]
        logits = logits[states + len(start) - 1 :]
        found[row, :length] = logits.log_softmax(dim=-1).gather(1, tokens[:length, None]).squeeze(1)
    return found


@prompts
def test_the_contract_holds(prompt, tmp_path):
    captioner = make(tmp_path, prompt=prompt)
    check_captioner(captioner, batch_of(captioner, 3))


@prompts
def test_scores_are_those_of_the_models_own_forward(prompt, tmp_path):
    captioner = make(tmp_path, prompt=prompt)
    model = GitForCausalLM.from_pretrained(tmp_path).eval()
    rollout = ragged(captioner, batch_of(captioner, 3))
    start = [2, *captioner.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        torch.testing.assert_close(captioner(rollout).logprobs, own_logprobs(model, rollout, start), atol=1e-5, rtol=0)


@prompts
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"no_repeat_ngram_size": 1}], ids=str)
def test_captions_are_those_of_the_models_own_generate(prompt, settings, tmp_path):
    captioner = make(tmp_path, prompt=prompt)
    model = GitForCausalLM.from_pretrained(tmp_path).eval()
    batch = batch_of(captioner, 8)
    ids = torch.tensor([[2, *captioner.tokenizer(prompt, add_special_tokens=False)["input_ids"]]] * 8)
    neutral = GenerationConfig(eos_token_id=3, pad_token_id=0, max_new_tokens=12, do_sample=False, **settings)
    model.generation_config = neutral
    output = model.generate(pixel_values=pixels_of(batch), input_ids=ids)[:, ids.shape[1] :]
    theirs = [text.strip() for text in captioner.tokenizer.batch_decode(output, skip_special_tokens=True)]
    ours = captioner.generate(batch, Decoding(max_new_tokens=12, **settings))
    assert ours.texts == theirs
    assert len(set(theirs)) > 3, "captions of one kind show little"


@prompts
@pytest.mark.parametrize("count", [1, 3])
def test_drawing_scoring_and_checkpointed_layers_agree(prompt, count, tmp_path):
    """Drawing goes through a cache, checkpointed layers keep none: images and positions must be the same in both."""
    cached = make(tmp_path, prompt=prompt, train="all")
    whole = make(tmp_path, prompt=prompt, train="all", gradient_checkpointing=True)
    sampling = Decoding(do_sample=True, num_return_sequences=count, max_new_tokens=12)
    rollout, met = cached.draw(batch_of(cached, 4), sampling)
    weight = torch.randn(rollout.mask.shape)
    scores = [captioner(rollout).logprobs for captioner in (cached, whole)]
    for scored in scores:
        torch.testing.assert_close(scored, met, atol=2e-5, rtol=0)
        (scored * weight).sum().backward()
    for (name, one), other in zip(cached.named_parameters(), whole.parameters(), strict=True):
        scale = one.grad.abs().max().clamp(min=1e-2)
        assert float((one.grad - other.grad).abs().max() / scale) < 1e-3, name


@pytest.mark.parametrize("train", ["decoder", "all"])
def test_everything_that_trains_gets_a_gradient(train, tmp_path):
    captioner = make(tmp_path, train=train)
    captioner(ragged(captioner, batch_of(captioner, 3))).logprobs.sum().backward()
    for name, parameter in captioner.family.model.named_parameters():
        frozen = train == "decoder" and name.startswith("git.image_encoder.")
        assert parameter.requires_grad != frozen, name
        assert (parameter.grad is None) == frozen, name


def test_adapters_sit_in_the_text_side_and_leave_the_base_as_it_is(tmp_path):
    from peft import PeftModel

    captioner = make(tmp_path / "base", lora=LoraOptions(r=2))
    names = adapted_modules(captioner.family.model)
    assert set(names) == {f"git.encoder.layer.{i}.attention.self.{part}" for i in (0, 1) for part in ("query", "value")}
    batch = batch_of(captioner, 4)
    rollout = ragged(captioner, batch)
    with torch.no_grad():
        base = captioner(rollout).logprobs
        for parameter in captioner.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
        assert float((captioner(rollout).logprobs - base).abs().max()) > 1e-2
        with captioner.network.disable_adapter():
            assert torch.equal(captioner(rollout).logprobs, base)
    captioner.save(tmp_path / "adapter")
    plain = PeftModel.from_pretrained(GitForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    with torch.no_grad():
        theirs = own_logprobs(plain.get_base_model(), rollout, [2])
        torch.testing.assert_close(captioner(rollout).logprobs, theirs, atol=1e-5, rtol=0)


def test_the_usual_adapter_names_would_hit_the_image_tower_alone(tmp_path):
    with pytest.raises(UsageError, match=r"'git\.image_encoder\..*' in the image tower"):
        make(tmp_path, lora=LoraOptions(target_modules=r".*\.(q_proj|v_proj)"))


def test_a_saved_folder_works_without_arguments_in_plain_transformers(tmp_path):
    captioner = make(None, train="all")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    captioner.save(tmp_path)
    model = GitForCausalLM.from_pretrained(tmp_path).eval()
    pixels = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(images(4), return_tensors="pt")
    output = model.generate(**pixels, num_beams=3, max_new_tokens=12)
    texts = AutoTokenizer.from_pretrained(tmp_path).batch_decode(output, skip_special_tokens=True)
    batch = batch_of(captioner, 4)
    ours = captioner.generate(batch, BEAMS).texts
    assert [text.strip() for text in texts] == ours
    assert len(set(ours)) > 1
    joint = AutoProcessor.from_pretrained(tmp_path)
    assert torch.equal(joint(images=images(4), return_tensors="pt")["pixel_values"], pixels_of(batch))
    again = HuggingFaceCaptioner.from_pretrained(tmp_path).eval()
    assert again.generate(batch, BEAMS).texts == ours


def test_captions_of_one_image_are_scored_with_that_image():
    """The model itself repeats images as 0 1 0 1, captions come as 0 0 1 1."""
    captioner = make(None)
    batch = batch_of(captioner, 2)
    rollout = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=8))
    scored = captioner(rollout).logprobs
    for row in range(6):
        one = rollout.select([row])
        alone = captioner(replace(one, batch=batch.select([row // 3]), image=torch.tensor([0]))).logprobs
        torch.testing.assert_close(alone[0], scored[row, : alone.shape[1]], atol=1e-5, rtol=0)
    swapped = captioner(replace(rollout, image=rollout.image.flip(0))).logprobs
    assert float((swapped - scored).abs().detach().max()) > 1e-2


def test_other_positions_would_be_noticed(monkeypatch):
    """Left to itself, the model counts the image too as soon as there is a cache, which its modules read."""
    right = Git.caption_positions

    def positions(self, encoded, image, first, count):
        given = right(self, encoded, image, first, count)
        return given + encoded.states.shape[1] if first else given

    captioner = make(None)
    monkeypatch.setattr(Git, "by_parts", lambda family, linear: None)
    monkeypatch.setattr(Git, "caption_positions", positions)
    with pytest.raises(UsageError, match="positions are shifted"):
        check_captioner(captioner, batch_of(captioner, 2))


def test_embeddings_of_the_caller_stay_as_they_are(tmp_path):
    """The model adds positions to what it is handed, in place; a leaf that wants gradients would be refused."""
    family = make(tmp_path).family
    encoded = family.encode({"pixel_values": pixels_of(batch_of(make(tmp_path), 2))})
    embeddings = family.prefix_embeddings(encoded).detach().requires_grad_()
    before = embeddings.detach().clone()
    mask, positions = family.prefix_mask(encoded), family.prefix_positions(encoded)
    hidden = family.text(embeddings, mask, positions, encoded, torch.arange(2), None)
    hidden.square().sum().backward()
    assert torch.equal(embeddings, before)
    assert bool(embeddings.grad.any(dim=2).all()), "some position is not read"


def test_human_captions_have_no_cls_and_one_sep():
    captioner = make(None)
    rollout = captioner.tokenize(batch_of(captioner, 1), ["a red circle"], torch.tensor([0]))
    words = captioner.tokenizer.convert_ids_to_tokens(rollout.tokens[0].tolist())
    assert words == ["a", "red", "circle", "[SEP]"]


def test_a_prompt_is_read_and_kept(tmp_path):
    bare, asked = make(tmp_path / "bare"), make(tmp_path / "asked", prompt="a red")
    rollout = ragged(bare, batch_of(bare, 2))
    assert asked.family.start == [2, *asked.tokenizer("a red", add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        assert float((asked(rollout).logprobs - bare(rollout).logprobs).abs().max()) > 1e-2
    asked.save(tmp_path / "kept")
    kept = HuggingFaceCaptioner.from_pretrained(tmp_path / "kept").eval()
    assert torch.equal(kept(rollout).logprobs, asked(rollout).logprobs)


def test_models_of_videos_are_refused(tmp_path):
    captioner = make(None)
    captioner.family.model.config.num_image_with_embedding = 6
    with pytest.raises(UsageError, match="6 frames of a video"):
        HuggingFaceCaptioner.from_parts(captioner.family.model, captioner.image_processor, captioner.tokenizer)


def test_half_precision_passes(tmp_path):
    captioner = make(tmp_path, dtype="bfloat16")
    check_captioner(captioner, batch_of(captioner, 2))
