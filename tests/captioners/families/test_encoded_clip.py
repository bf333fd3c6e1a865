"""The captioner of DiCO's paper: a frozen CLIP tower, an encoder and a decoder, from random weights to DiCO."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, CLIPVisionModel

from family_checks import lengths
from listeners.tiny_listeners import clip_parts, siglip_parts
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.fresh import fresh_clip_transformer
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.objectives.dico import DiCO
from tellapart.types import Decoding
from tiny_models import batch_of, redraw

SIZES = {"hidden_size": 24, "layers": 3, "heads": 4}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """The folder of a CLIP."""
    folder = tmp_path_factory.mktemp("clip")
    model, image_processor, tokenizer = clip_parts()
    ClipListener.from_parts(model, image_processor, tokenizer).save(folder)
    return folder


@pytest.fixture
def captioner(clip):
    """With wide weights, so that every part of it shows."""
    made = fresh_clip_transformer(clip, **SIZES).eval()
    redraw(made.family.model, std=0.25, seed=1)
    return made


def test_parts_and_what_learns(clip):
    captioner = fresh_clip_transformer(clip, **SIZES)
    model = captioner.family.model
    assert (len(model.encoder.encoder.layer), model.config.decoder.n_layer) == (3, 3)
    assert model.encoder.encoder.layer[0].intermediate.dense.out_features == 4 * 24
    tower = CLIPVisionModel.from_pretrained(clip).state_dict()
    assert all(torch.equal(value, tower[name]) for name, value in model.encoder.tower.state_dict().items())
    learning = {name for name, parameter in captioner.named_parameters() if parameter.requires_grad}
    assert not any(".tower." in name for name in learning)
    assert {name.split(".encoder.")[1].split(".")[0] for name in learning if ".encoder." in name} == {
        "projection",
        "encoder",
    }
    assert not captioner.trains_vision
    assert captioner.family.vocab_size == len(captioner.tokenizer)


def test_clip_fills_with_its_end_so_a_token_is_added(clip, tmp_path):
    from transformers import AutoTokenizer

    for part in clip.iterdir():
        (tmp_path / part.name).write_bytes(part.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(clip)
    words = len(tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path)
    made = fresh_clip_transformer(tmp_path, **SIZES)
    assert made.tokenizer.pad_token == "<|pad|>"
    assert (made.family.pad, made.family.vocab_size) == (words, words + 1)
    assert made.family.eos == [tokenizer.eos_token_id]


def test_it_keeps_the_contract(captioner):
    check_captioner(captioner, batch_of(captioner, 3))


def test_plain_transformers_computes_the_same(captioner, tmp_path):
    captioner.save(tmp_path)
    plain, report = AutoModelForImageTextToText.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = batch_of(captioner, 3)
    rollout = captioner.generate(batch, Decoding(max_new_tokens=8))
    pixels = batch.inputs["captioner"]["pixel_values"]
    start = torch.full((3, 1), captioner.family.start[0])
    with torch.no_grad():
        words = torch.cat([start, rollout.tokens[:, :-1]], dim=1)
        theirs = plain.eval()(pixel_values=pixels, decoder_input_ids=words).logits.log_softmax(-1)
        wanted = theirs.gather(2, rollout.tokens[:, :, None])[:, :, 0] * rollout.mask
        torch.testing.assert_close(captioner(rollout).logprobs, wanted, atol=1e-5, rtol=0)
    again = HuggingFaceCaptioner.from_pretrained(tmp_path).eval()
    assert again.generate(batch, Decoding(max_new_tokens=8)).texts == rollout.texts


def test_dico_trains_projection_encoder_and_decoder(captioner):
    objective = DiCO(captioner, lengths, num_beams=2, max_new_tokens=6)
    batch = batch_of(captioner, 3)
    with torch.no_grad():
        experience = objective.collect(batch, 0)
    [output] = objective.losses(experience)
    assert float(output.loss) / 3 == pytest.approx(0.6931, abs=1e-3)  # ln 2 at the start model
    output.loss.backward()
    model = captioner.family.model
    for part in (model.encoder.projection, model.encoder.encoder, model.decoder):
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in part.parameters())
    assert all(p.grad is None for p in model.encoder.tower.parameters())


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"heads": 5}, UsageError, "a width that the heads divide"),
        ({"layers": 0}, ValueError, "at least 1"),
        ({"dropout": 1.0}, ValueError, "below 1"),
    ],
)
def test_sizes_that_cannot_be_used(clip, options, error, said):
    with pytest.raises(error, match=said):
        fresh_clip_transformer(clip, **(SIZES | options))


def test_a_tower_that_is_no_clip(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UsageError, match=r"captioner.transformer.tower .* could not be read as a CLIP"):
        fresh_clip_transformer(tmp_path)


def test_a_tower_of_another_kind_is_refused(tmp_path):
    model, image_processor, tokenizer = siglip_parts()
    ClipListener.from_parts(model, image_processor, tokenizer).save(tmp_path)
    with pytest.raises(UsageError, match=r"could not be read as a CLIP, for it is a 'siglip' model: name a CLIP\.$"):
        fresh_clip_transformer(tmp_path)


def test_a_tower_without_all_of_its_weights_is_refused(clip, tmp_path):
    shutil.copytree(clip, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    lost = {name for name in weights if name.startswith("vision_model.encoder.layers.1.")}
    save_file({name: weights[name] for name in weights.keys() - lost}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=rf"lacks {len(lost)} weights, first '.*layers\.1\..*': give all of the model"):
        fresh_clip_transformer(tmp_path, **SIZES)


def test_a_tower_of_other_sizes_is_refused(clip, tmp_path):
    shutil.copytree(clip, tmp_path, dirs_exist_ok=True)
    config = json.loads((clip / "config.json").read_text())
    config["vision_config"]["hidden_size"] *= 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="could not be read as a CLIP"):
        fresh_clip_transformer(tmp_path, **SIZES)


def test_a_vision_tower_alone_serves(clip, tmp_path):
    shutil.copytree(clip, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    CLIPVisionModel.from_pretrained(clip).save_pretrained(tmp_path)
    whole, alone = (fresh_clip_transformer(folder, **SIZES).family.model.encoder.tower for folder in (clip, tmp_path))
    assert all(torch.equal(value, alone.state_dict()[name]) for name, value in whole.state_dict().items())
