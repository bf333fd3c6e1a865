"""Families that read one prompt and an image by their own processor: against the plain models, by ids and pixels."""

from functools import partial

import pytest
import torch
import transformers

from pictures import CAPTIONS, images
from tellapart.captioners.adapters import LoraOptions, adapted_modules
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.types import Batch, Decoding, Rollout
from tiny.idefics3 import tiny_idefics3, tiny_smolvlm
from tiny.llava import tiny_llava
from tiny.paligemma import tiny_paligemma

MAKERS = {
    "llava": tiny_llava,
    "paligemma": tiny_paligemma,
    "paligemma2": partial(tiny_paligemma, version="gemma2"),
    "idefics3": tiny_idefics3,
    "smolvlm": tiny_smolvlm,
}
SHAPES = [(32, 32), (48, 24), (20, 40), (64, 48)]
NEW = 14


@pytest.fixture(params=MAKERS, scope="module")
def folder(request, tmp_path_factory):
    """A small model of the family, saved once."""
    path = tmp_path_factory.mktemp(request.param)
    MAKERS[request.param](path)
    return path


def load(folder, **options):
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def pictures(count, seed=0):
    """Pictures of different shapes: a family that cuts them has more tiles for some."""
    return [image.resize(SHAPES[i % 4], 0) for i, image in enumerate(images(count, seed=seed))]


def batch_of(captioner, count, *, seed=0):
    references = [[CAPTIONS[(2 * i) % 64], CAPTIONS[(2 * i + 9) % 64]] for i in range(count)]
    inputs = {captioner.name: captioner.process(pictures(count, seed=seed))}
    return Batch([f"image-{seed}-{i}" for i in range(count)], references, inputs)


def ragged(captioner, batch, count=3):
    """Drawn captions and human ones, of very different lengths; the plain models cannot read image tokens in them."""
    torch.manual_seed(1)
    drawn = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=count, max_new_tokens=NEW))
    human = captioner.tokenize(
        batch, ["", "a", CAPTIONS[3], f"{CAPTIONS[5]} {CAPTIONS[6]}"], torch.tensor([2, 0, 1, 2])
    )
    rollout = Rollout.concat([drawn, human])
    kept = [row for row, tokens in enumerate(rollout.tokens.tolist()) if captioner.family.image_token not in tokens]
    return rollout.select(kept)


def plain_inputs(processor, prompt, picture):
    """What plain transformers makes of one picture and the prompt: no padding, nothing of ours."""
    if processor.chat_template is None:
        return processor(images=[picture], text=[f"<image>{prompt}"], return_tensors="pt")
    content = [{"type": "image", "image": picture}, {"type": "text", "text": prompt}]
    return processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )


def plain_logprobs(captioner, rollout, shown):
    """``[N, T]`` by the model's own forward on ids and pixels of every caption alone."""
    model, processor = captioner.family.model, captioner.family.processors.joint
    rows = []
    for image, tokens, length in zip(rollout.image.tolist(), rollout.tokens, rollout.lengths.tolist(), strict=True):
        inputs = dict(plain_inputs(processor, captioner.family.prompt, shown[image]))
        inputs.pop("labels", None)
        width, caption = inputs["input_ids"].shape[1], tokens[None, :length]
        for name, value in (
            ("input_ids", caption),
            ("attention_mask", 1 + 0 * caption),
            ("token_type_ids", 1 + 0 * caption),
        ):
            if name in inputs:
                inputs[name] = torch.cat([inputs[name], value], dim=1)
        logprobs = model(**inputs).logits[0, width - 1 : width + length - 1].log_softmax(dim=-1)
        chosen = logprobs.gather(1, tokens[:length, None]).squeeze(1)
        rows.append(torch.nn.functional.pad(chosen, (0, rollout.tokens.shape[1] - length)))
    return torch.stack(rows)


def plain_captions(model, processor, prompt, shown, **settings):
    """Texts by the model's own ``generate`` on ids and pixels, one picture at a time."""
    texts = []
    for picture in shown:
        inputs = dict(plain_inputs(processor, prompt, picture))
        inputs.pop("labels", None)
        output = model.generate(**inputs, max_new_tokens=NEW, do_sample=False, **settings)
        new = output[:, inputs["input_ids"].shape[1] :]
        texts += [text.strip() for text in processor.batch_decode(new, skip_special_tokens=True)]
    return texts


def test_the_contract_holds_and_another_image_is_another_caption(folder):
    captioner = load(folder)
    batch = batch_of(captioner, 6)
    check_captioner(captioner, batch)
    drawn = captioner.generate(batch, Decoding(max_new_tokens=NEW))
    assert len(set(drawn.texts)) > 1
    assert len(set(drawn.lengths.tolist())) > 1
    assert drawn.finished.any()


def test_scores_are_those_of_the_plain_forward(folder):
    captioner = load(folder)
    batch = batch_of(captioner, 3)
    rollout = ragged(captioner, batch)
    wanted = plain_logprobs(captioner, rollout, pictures(3))
    torch.testing.assert_close(captioner(rollout).logprobs, wanted, atol=1e-5, rtol=0)
    turned = rollout.batch.select([2, 0])
    again = Rollout(turned, torch.tensor([0]), [""], rollout.tokens[-1:], rollout.mask[-1:], rollout.finished[-1:])
    torch.testing.assert_close(captioner(again).logprobs, wanted[-1:], atol=1e-5, rtol=0)


def test_captions_are_those_of_the_plain_generate(folder):
    captioner = load(folder)
    batch, shown = batch_of(captioner, 4), pictures(4)
    model, processor = captioner.family.model, captioner.family.processors.joint
    for beams in (1, 3):
        for size in (0, 1, 2):
            settings = {"num_beams": beams, "no_repeat_ngram_size": size}
            drawn = captioner.generate(batch, Decoding(max_new_tokens=NEW, **settings))
            assert drawn.texts == plain_captions(model, processor, captioner.family.prompt, shown, **settings)


def gradients(captioner, rollout, weight):
    captioner.zero_grad()
    scores = captioner(rollout).logprobs
    (scores * weight).sum().backward()
    return scores.detach(), {n: p.grad.clone() for n, p in captioner.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("train", ["decoder", "all"])
def test_everything_that_trains_gets_the_same_gradient_with_and_without_a_cache(folder, train):
    captioner = load(folder, train=train)
    rollout = ragged(captioner, batch_of(captioner, 3))
    weight = torch.randn(rollout.mask.shape)
    scores, wanted = gradients(captioner, rollout, weight)
    trained = {name for name, parameter in captioner.named_parameters() if parameter.requires_grad}
    assert wanted.keys() == trained
    tower = {id(parameter) for parameter in captioner.family.vision.parameters()}
    assert any(id(p) in tower and p.requires_grad for p in captioner.parameters()) == (train == "all")
    saving = load(folder, train=train, gradient_checkpointing=True).train()
    again, found = gradients(saving, rollout, weight)
    torch.testing.assert_close(again, scores, atol=2e-5, rtol=0)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-4 * float(gradient.abs().max() + 1), rtol=1e-3)


@pytest.mark.parametrize("count", [1, 3])
def test_log_probabilities_of_drawing_are_those_of_scoring(folder, count):
    captioner = load(folder)
    batch = batch_of(captioner, 4)
    rollout, met = captioner.draw(batch, Decoding(do_sample=True, num_return_sequences=count, max_new_tokens=NEW))
    assert (captioner(rollout).logprobs - met).abs().max() < 1e-5
    saving = load(folder, gradient_checkpointing=True).train()
    assert (saving(rollout).logprobs - met).abs().max() < 1e-5
    torch.manual_seed(0)
    wanted = captioner.generate(batch, Decoding(do_sample=True, max_new_tokens=NEW)).texts
    torch.manual_seed(0)
    assert saving.generate(batch, Decoding(do_sample=True, max_new_tokens=NEW)).texts == wanted


def shaken(captioner):
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    return captioner


def test_an_adapter_is_on_the_text_side_only_and_off_is_the_base(folder):
    base = load(folder)
    rollout = ragged(base, batch_of(base, 3))
    captioner = shaken(load(folder, lora=LoraOptions(r=2)))
    names = list(adapted_modules(captioner.family.model))
    assert len(names) == 8
    assert all("language_model" in name or "text_model" in name for name in names)
    assert not torch.equal(captioner(rollout).logprobs, base(rollout).logprobs)
    with captioner.network.disable_adapter(), torch.no_grad():
        # layers without an adapter may be multiplied together, whose last bits are others
        torch.testing.assert_close(captioner(rollout).logprobs, base(rollout).logprobs, atol=1e-5, rtol=1e-6)
    captioner(rollout).logprobs.sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in captioner.parameters())


def test_a_saved_folder_is_read_by_plain_transformers(folder, tmp_path):
    captioner = shaken(load(folder, prompt="what is on a table"))
    captioner.save(tmp_path / "saved")
    drawn = captioner.generate(batch_of(captioner, 4), Decoding(num_beams=3, max_new_tokens=NEW))
    model = type(captioner.family.model).from_pretrained(tmp_path / "saved").eval()
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "saved")
    texts = plain_captions(model, processor, "what is on a table", pictures(4), num_beams=3)
    assert texts == drawn.texts
    ours = load(tmp_path / "saved")
    assert ours.family.prompt == "what is on a table"
    assert ours.generate(batch_of(ours, 4), Decoding(num_beams=3, max_new_tokens=NEW)).texts == drawn.texts


def test_an_adapter_folder_is_read_by_plain_peft(folder, tmp_path):
    from peft import PeftModel

    captioner = shaken(load(folder, lora=LoraOptions(r=2)))
    captioner.save(tmp_path / "adapter")
    drawn = captioner.generate(batch_of(captioner, 4), Decoding(max_new_tokens=NEW))
    base = type(captioner.family.model).from_pretrained(folder)
    model = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "adapter")
    assert plain_captions(model, processor, captioner.family.prompt, pictures(4)) == drawn.texts
    ours = load(tmp_path / "adapter")
    assert ours.generate(batch_of(ours, 4), Decoding(max_new_tokens=NEW)).texts == drawn.texts
