"""The captioner of DiCO's paper in recipes, from teacher forcing to DiCO; and every reward of that paper."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import pytest
import torch

from command_recipes import load_recipe
from given import vector
from tellapart.captioners.fresh import fresh_clip_transformer
from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.metrics.scores import refclip_s
from tellapart.recipe.build import build
from tellapart.recipe.sections import TransformerSection


def test_from_random_weights_to_dico(materials, tmp_path):
    new = {"tower": str(materials.listener), "hidden_size": 16, "heads": 2, "layers": 1, "dropout": 0.1}
    captioner = {"model_name_or_path": "new/clip_transformer", "transformer": new}
    options = {"captioner": captioner, "listener": None, "objective": {"captions_per_image": 2}, "dropout": True}
    assert main(["train", str(materials.recipe(tmp_path, "xe", **options))]) == 0
    trained = {"captioner": {"model_name_or_path": str(tmp_path / "xe")}}
    changes = {"reward": {"ref_pac_s": 1.0}, "objective": {"num_beams": 2, "max_new_tokens": 8}}
    assert main(["train", str(materials.recipe(tmp_path, "dico", **trained, **changes))]) == 0
    rows = [json.loads(line) for line in (tmp_path / "dico" / "metrics.jsonl").read_text().splitlines()]
    assert any("rewards/ref_pac_s" in row for row in rows)
    assert any("effective_losers" in row for row in rows)


def test_the_section_mirrors_what_it_becomes():
    signature = inspect.signature(fresh_clip_transformer).parameters
    defaults = {f.name: f.default for f in fields(TransformerSection)}
    assert set(signature) == set(defaults)
    assert all(signature[name].default == value for name, value in defaults.items() if name != "tower")


def test_a_tower_that_does_not_exist_is_named(materials, tmp_path):
    captioner = {"model_name_or_path": "new/clip_transformer", "transformer": {"tower": str(tmp_path / "nowhere")}}
    path = materials.recipe(tmp_path, "xe", captioner=captioner)
    with pytest.raises(UsageError, match=r"captioner.transformer.tower .*nowhere' could not be read as a CLIP"):
        build(load_recipe([str(path)]))


def test_sections_of_other_captioners_are_refused(materials, tmp_path):
    for name, section in (("new/clip_transformer", "new"), ("new/fc_lstm", "transformer"), ("x", "transformer")):
        captioner = {"model_name_or_path": name, section: {"hidden_size": 16}}
        with pytest.raises(UsageError, match=rf"captioner.{section} .*leave it out"):
            build(load_recipe([str(materials.recipe(tmp_path, "xe", captioner=captioner))]))


def test_an_adapter_of_random_weights_is_refused(materials, tmp_path):
    """A run keeps the adapter alone, and the weights below it are nowhere."""
    new = {"tower": str(materials.listener), "hidden_size": 16, "heads": 2, "layers": 1}
    captioner = {"model_name_or_path": "new/clip_transformer", "transformer": new, "lora": {"r": 2}}
    with pytest.raises(UsageError, match=r"captioner\.lora adapts trained weights, but new/clip_transformer begins"):
        build(load_recipe([str(materials.recipe(tmp_path, "xe", captioner=captioner))]))


def test_the_listener_rewards_of_the_paper(materials, tmp_path):
    """CLIP-S and PAC-S differ by their weights alone; the reference-based ones are checked against the metric."""
    names = ("clip_s", "pac_s", "ref_clip_s", "ref_pac_s")
    built = build(load_recipe([str(materials.recipe(tmp_path, "scst", reward=dict.fromkeys(names, 1.0)))]))
    data = built.data.dataset
    batch = built.data.collate([data[i] for i in range(4)])
    texts = [data[i].references[0] for i in (1, 1, 0, 3)]
    found = built.objective.reward.parts(built.captioner.tokenize(batch, texts, torch.arange(4)))
    listener = built.objective.reward.rewards["clip_s"].listener
    torch.testing.assert_close(found["pac_s"], found["clip_s"] * 2.0 / 2.5)
    vectors = listener.encode_texts([*texts, *[text for row in batch.references for text in row]]).detach()
    captions, others = vectors[:4], vectors[4:].view(4, 2, -1)
    cosines = (captions * listener.encode_images(batch)).sum(dim=1)
    references = torch.einsum("nd,nrd->nr", captions, others)
    for name, weight in (("ref_clip_s", 2.5), ("ref_pac_s", 2.0)):
        wanted = refclip_s(cosines.numpy(), references.numpy().tolist(), weight=weight)
        torch.testing.assert_close(found[name].double(), torch.as_tensor(wanted).double(), atol=1e-5, rtol=0)
    # the weights are those of the vector: 0.8 of CLIP-S is 0.64 of PAC-S
    _, expected, _ = vector("clip_and_pac_scores")
    assert expected["pac_s"][0] / expected["clip_s"][0] == pytest.approx(2.0 / 2.5)


@pytest.mark.parametrize("name", ["ref_clip_s", "pac_s", "ref_pac_s"])
def test_they_need_a_listener(materials, tmp_path, name):
    path = materials.recipe(tmp_path, "scst", reward={name: 1.0}, listener=None)
    with pytest.raises(UsageError, match=rf"reward.{name} needs a listener: set listener.path"):
        build(load_recipe([str(path)]))
