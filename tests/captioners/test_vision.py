"""Features of vision models: places of the last feature map, without class and register tokens."""

from __future__ import annotations

import pytest
import torch
import transformers

from pictures import images
from tellapart.captioners.vision import VisionFeatures
from tellapart.errors import UsageError

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
PATCHES = {**SIZES, "image_size": 32, "patch_size": 8}
TEXT = {"text_config": {**SIZES, "intermediate_size": 32, "vocab_size": 50}}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}

TOWERS = {
    "ViT": ({**PATCHES, "intermediate_size": 32}, (16, 32), 1),
    "CLIPVision": ({**PATCHES, "intermediate_size": 32}, (16, 32), 1),
    "CLIP": ({"vision_config": {**PATCHES, "intermediate_size": 32}, **TEXT}, (16, 32), 1),
    "Siglip": ({"vision_config": {**PATCHES, "intermediate_size": 32}, **TEXT}, (16, 32), 0),
    "Dinov2": (PATCHES, (16, 32), 1),
    "Dinov2WithRegisters": (PATCHES, (16, 32), 5),
    "ResNet": (RESNET, (16, 16), None),
    "Swin": (SWIN, (16, 16), 0),
}
"""Name -> configuration, (places, width), and tokens before the patches; none for a map ``[C, h, w]``."""


@pytest.mark.parametrize("name", TOWERS)
def test_the_last_map_is_taken(name, tmp_path):
    settings, shape, before = TOWERS[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)).eval()
    model.save_pretrained(tmp_path)
    processor = transformers.CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    processor.save_pretrained(tmp_path)
    grid, mean = (VisionFeatures.from_pretrained(tmp_path, pool=pool) for pool in ("grid", "mean"))
    inputs = grid.process(images(3, size=40))
    found = grid(inputs)
    assert found.shape == (3, *shape)
    with torch.no_grad():
        states = getattr(model, "vision_model", model)(**inputs).last_hidden_state
    for place in (0, 3, 15):
        wanted = states[:, before + place] if before is not None else states[:, :, place // 4, place % 4]
        assert torch.allclose(found[:, place], wanted, atol=1e-5), (found[:, place] - wanted).abs().max()
    assert torch.allclose(mean(inputs), found.mean(dim=1), atol=1e-6)
    assert mean.fingerprint() == grid.fingerprint()


def test_the_fingerprint_tells_weights_and_preprocessing_apart():
    torch.manual_seed(0)
    make = transformers.CLIPImageProcessorPil
    models = [transformers.ViTModel(transformers.ViTConfig(**PATCHES, intermediate_size=32)) for _ in range(2)]
    found = {
        VisionFeatures(model, processor).fingerprint()
        for model in models
        for processor in (make(), make(image_mean=[0.5] * 3))
    }
    assert len(found) == 4


def test_a_folder_of_a_model_that_does_not_exist_is_not_asked_of_the_hub(tmp_path):
    with pytest.raises(UsageError, match=r"the vision model's folder .*none does not exist: check the path\."):
        VisionFeatures.from_pretrained(tmp_path / "none")


def test_what_is_no_vision_model_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"--model .* cannot be read as a vision model of transformers"):
        VisionFeatures.from_pretrained(tmp_path)
