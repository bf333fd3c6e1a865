"""CLIP4Clip: mean and sequential pooling of frames, against a plain re-computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_listeners import clip_parts
from transformers import AutoModel, CLIPConfig, CLIPModel

from tellapart.data.clips import ArrayClip
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.clip4clip import Clip4Clip, Clip4ClipConfig, Temporal
from tellapart.listeners.pooled import embed_and_pool
from tellapart.listeners.projections import ProjectionsListener
from tellapart.listeners.trained import TrainedListener

FRAMES = 4


def make(temporal: Temporal, *, width: int = 8) -> tuple[CLIPModel, ClipListener]:
    """A CLIP with wide random weights whose embeddings are ``width`` wide (its text tower is 16 wide), and one over frames."""
    clip, processor, words = clip_parts()
    torch.manual_seed(1)
    clip = CLIPModel(CLIPConfig(**clip.config.to_dict() | {"projection_dim": width})).eval()
    with torch.no_grad():
        for weight in clip.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
    torch.manual_seed(2)
    model = Clip4Clip.from_clip(clip, num_frames=FRAMES, temporal=temporal, layers=1, heads=2).eval()
    return clip, ClipListener.from_parts(model, processor, words, prefix="")


def clips(count: int) -> list[ArrayClip]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, FRAMES, 16, 16, 3), dtype=np.uint8)
    return [ArrayClip(f"clip-{i}", one) for i, one in enumerate(pixels)]


def unit(vector: torch.Tensor) -> torch.Tensor:
    return vector / vector.norm()


@torch.no_grad()
def test_the_mean_is_that_of_the_frames_unit_vectors():
    clip, listener = make("mean")
    inputs = listener.process([one.frames(FRAMES) for one in clips(2)])["pixel_values"]
    assert inputs.shape == (2, FRAMES, 3, 16, 16)
    for found, frames in zip(listener.embed_images(inputs), inputs, strict=True):
        vectors = [unit(clip.get_image_features(pixel_values=frame[None]).pooler_output[0]) for frame in frames]
        assert torch.allclose(found, unit(sum(vectors) / FRAMES), atol=1e-5)
    assert torch.allclose(listener.embed_images(inputs.flip(1)), listener.embed_images(inputs), atol=1e-5)


@torch.no_grad()
def test_layers_that_start_from_the_text_tower_compute_what_its_layers_do():
    """They had 8 heads each, whatever the tower has: 12 in a CLIP of ViT-L/14."""
    clip, _ = make("mean", width=16)
    model = Clip4Clip.from_clip(clip, num_frames=FRAMES, temporal="transformer", layers=1).eval()
    assert model.config.temporal_heads == clip.config.text_config.num_attention_heads == 2
    frames = torch.randn(2, FRAMES, 16)
    mine = model.temporal_encoder.layers[0](frames, None)
    assert torch.allclose(mine, clip.text_model.encoder.layers[0](frames, None), atol=1e-5)
    other, _ = make("mean")
    assert Clip4Clip.from_clip(other).config.temporal_heads == 8


@torch.no_grad()
def test_the_sequential_type_adds_its_input_and_reads_the_order():
    clip, listener = make("transformer")
    inputs = listener.process([one.frames(FRAMES) for one in clips(1)])["pixel_values"]
    frames = clip.get_image_features(pixel_values=inputs[0]).pooler_output
    placed = frames + listener.model.temporal_position.weight
    summed = frames + listener.model.temporal_encoder(inputs_embeds=placed[None]).last_hidden_state[0]
    wanted = unit(sum(unit(vector) for vector in summed))
    assert torch.allclose(listener.embed_images(inputs)[0], wanted, atol=1e-5)
    assert not torch.allclose(listener.embed_images(inputs.flip(1)), listener.embed_images(inputs), atol=1e-3)
    states = clip.vision_model(pixel_values=inputs[0]).last_hidden_state[:, 0]
    assert torch.allclose(listener.embed_images(states[None])[0], wanted, atol=1e-5)


def test_the_sequential_type_starts_from_the_text_tower_where_widths_agree():
    for width, same in ((16, True), (8, False)):
        clip, listener = make("transformer", width=width)
        position = listener.model.temporal_position.weight
        text = clip.text_model.embeddings.position_embedding.weight[:FRAMES]
        assert (position.shape == text.shape and torch.equal(position, text)) == same
        if same:
            own, theirs = listener.model.temporal_encoder.layers[0], clip.text_model.encoder.layers[0]
            assert torch.equal(own.mlp.fc1.weight, theirs.mlp.fc1.weight)


def test_a_saved_listener_is_the_same_and_loads_by_its_type(tmp_path):
    _, listener = make("transformer")
    listener.save(tmp_path / "saved")
    loaded = ClipListener.from_pretrained(tmp_path / "saved")
    assert loaded.num_frames == FRAMES
    dataset = CaptionDataset([Example(one.name, one) for one in clips(3)], name="clips")
    for one in (listener, loaded):
        one.cache_images(dataset)
    assert torch.allclose(loaded.encode_ids(dataset.ids), listener.encode_ids(dataset.ids), atol=1e-6)
    assert torch.allclose(loaded.encode_texts(["red dog"]), listener.encode_texts(["red dog"]), atol=1e-6)
    assert isinstance(AutoModel.from_pretrained(tmp_path / "saved"), Clip4Clip)
    TrainedListener(listener).load_weights(tmp_path / "saved")


@pytest.mark.parametrize("temporal", ["mean", "transformer"])
def test_text_features_before_the_projection_are_those_of_its_clip(temporal):
    clip, listener = make(temporal)
    texts = ["a dog runs", "a cat"]
    embeddings, features = embed_and_pool(listener, texts)
    projected = clip.text_projection(features)
    torch.testing.assert_close(projected / projected.norm(dim=-1, keepdim=True), embeddings)
    with pytest.raises(UsageError, match="reads clips, and only of a CLIP of images are the projections trained alone"):
        ProjectionsListener(listener)


def test_an_unknown_pooling_is_refused():
    config = clip_parts()[0].config.to_dict() | {"temporal": "max"}
    with pytest.raises(UsageError, match="temporal is 'max'"):
        Clip4Clip(Clip4ClipConfig(**{key: value for key, value in config.items() if key != "model_type"}))
