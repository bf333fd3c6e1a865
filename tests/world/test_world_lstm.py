"""The world's recurrent start captioner, and its features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tellapart.world import load_world
from tellapart.world.backbone import image_processor
from tellapart.world.lstm import SPLITS, world_features
from tellapart.world.stages import resolve, stage_folder


@pytest.mark.slow
def test_features_are_the_mean_over_the_backbones_patches():
    from transformers import CLIPVisionModel

    backbone = resolve("world/backbone", size="small")
    features = world_features(backbone, "small")
    examples = {e.id: e for split in SPLITS for e in load_world(split, size="small")}
    assert len(features) == len(examples)
    tower = CLIPVisionModel.from_pretrained(backbone).eval()
    name = next(iter(load_world("test", size="small"))).id
    pixels = image_processor()(images=[examples[name].image.open()], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        states = tower(pixel_values=pixels).last_hidden_state[0]
    np.testing.assert_allclose(features[name], states[1:].mean(dim=0).numpy(), atol=1e-5)  # without the class token


def test_seeds_of_a_start_captioner_have_folders_of_their_own():
    folders = {stage_folder("world/lstm", "full", seed) for seed in (0, 1)}
    assert {folder.name.rpartition("-")[0] for folder in folders} == {"lstm-seed0", "lstm-seed1"}
