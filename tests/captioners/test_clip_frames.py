"""Captioners of clips: a tower per frame, temporal positions, and what the start-up check says of the order of frames."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModel, CLIPVisionModel, VisionEncoderDecoderModel

from pictures import CAPTIONS, images
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.vision import VisionFeatures
from tellapart.data.clips import ArrayClip
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.frames import Opener
from tellapart.objectives.scst import SCST
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Decoding
from tiny.clip_frames import FRAMES, arrays, clip_batch, clips, tiny_frames, tiny_tower
from tiny_models import tiny_ved


def told(caplog):
    """What the project said; whether transformers' warnings are heard depends on the tests before."""
    return [record for record in caplog.records if record.name.startswith("tellapart")]


def test_every_frame_is_seen_by_the_tower_alone_and_by_the_layers_with_its_position():
    captioner = tiny_frames()
    batch = clip_batch(captioner, 2)
    model = captioner.family.model.encoder
    pixels = batch.inputs["captioner"]["pixel_values"]
    assert pixels.shape == (2, FRAMES, 3, 32, 32)
    with torch.no_grad():
        slow = torch.stack([model.tower(pixel_values=clip).last_hidden_state for clip in pixels])  # [B, F, P, D]
        placed = model.norm(slow) + model.temporal_position.weight[:, None]
        wanted = model.encoder(placed.flatten(1, 2)).last_hidden_state
        assert torch.allclose(model(pixels).last_hidden_state, wanted, atol=1e-5)
        assert torch.allclose(captioner.encode(batch).states, slow.flatten(1, 2), atol=1e-5)
        given = replace(batch, inputs={"captioner": {"states": slow.flatten(1, 2)}})
        rollout = captioner.tokenize(batch, CAPTIONS[:2], torch.arange(2))
        same = captioner(replace(rollout, batch=given)).logprobs
        assert torch.allclose(same, captioner(rollout).logprobs, atol=1e-5)


def test_the_contract_holds_and_the_order_of_frames_matters(caplog):
    captioner = tiny_frames()
    with caplog.at_level(logging.WARNING):
        check_captioner(captioner, clip_batch(captioner, 2))
    assert not told(caplog)


def test_a_captioner_that_is_blind_to_order_is_told_and_is_not_refused(caplog):
    captioner = tiny_frames(layers=0)
    torch.nn.init.zeros_(captioner.family.model.encoder.temporal_position.weight)
    batch = clip_batch(captioner, 2)
    with caplog.at_level(logging.WARNING):
        check_captioner(captioner, batch)
    (record,) = told(caplog)
    assert "does not read the order of frames" in record.getMessage()
    states = {"states": captioner.encode(batch).states}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_captioner(captioner, replace(batch, inputs={"captioner": states}))
    assert len(caplog.records) == 1
    assert captioner.reversed_frames(batch).ids == batch.ids
    still = tiny_ved()
    assert still.num_frames is None
    assert still.reversed_frames(batch) is None


def test_a_saved_folder_gives_the_same_captions_and_loads_in_transformers(tmp_path):
    captioner = tiny_frames(tmp_path / "saved")
    fresh = tiny_frames()
    batch = clip_batch(captioner, 3)
    for decoding in (Decoding(max_new_tokens=6), Decoding(num_beams=3, max_new_tokens=6)):
        assert captioner.generate(batch, decoding).texts == fresh.generate(batch, decoding).texts
    model = VisionEncoderDecoderModel.from_pretrained(tmp_path / "saved")
    drawn = model.generate(
        pixel_values=batch.inputs["captioner"]["pixel_values"], max_new_tokens=6, num_beams=1, do_sample=False
    )
    texts = [captioner.tokenizer.decode(row, skip_special_tokens=True).strip() for row in drawn]
    assert texts == captioner.generate(batch, Decoding(max_new_tokens=6)).texts


def test_training_reads_clips_and_leaves_the_tower_as_it_is(tmp_path):
    captioner = tiny_frames()
    before = {name: weight.clone() for name, weight in captioner.family.model.encoder.named_parameters()}
    examples = [
        Example(f"clip-{i}", ArrayClip(f"clip-{i}", array), (CAPTIONS[i],)) for i, array in enumerate(arrays(4))
    ]
    data = TrainingData(CaptionDataset(examples, name="clips"), Collate({"captioner": captioner.process}))

    def odd(rollout):
        return ((rollout.tokens % 2) * rollout.mask).float().sum(dim=1)

    objective = SCST(captioner, odd, baseline="leave_one_out", num_generations=2, max_new_tokens=6)
    train(
        objective,
        data,
        TrainConfig(output_dir=tmp_path, max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2),
    )
    after = dict(captioner.family.model.encoder.named_parameters())
    changed = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert not any(name.startswith("tower.") for name in changed)
    assert "temporal_position.weight" in changed


def test_another_number_of_frames_is_refused():
    captioner = tiny_frames()
    with pytest.raises(ValueError, match="reads \\[B, 4, 3, H, W\\]"):
        captioner.family.model.encoder.tower_states(torch.zeros(1, 3, 3, 32, 32))


def test_features_of_frames_are_pooled_over_frames_places_or_neither():
    tower: CLIPVisionModel = tiny_tower().tower
    processor = tiny_frames().image_processor
    pools = {pool: VisionFeatures(tower, processor, pool=pool, frames=FRAMES) for pool in ("mean", "frames", "grid")}
    inputs = pools["mean"].process(clips(2))
    with torch.no_grad():
        places = torch.stack([tower(pixel_values=c).last_hidden_state[:, 1:] for c in inputs["pixel_values"]])
    wanted = {"mean": places.mean(dim=(1, 2)), "frames": places.mean(dim=2), "grid": places.flatten(1, 2)}
    for pool, vision in pools.items():
        assert torch.allclose(vision(inputs), wanted[pool], atol=1e-5), pool
        assert vision.loses_order == (pool == "mean")
    backwards = {"pixel_values": inputs["pixel_values"].flip(1)}
    assert torch.allclose(pools["mean"](backwards), pools["mean"](inputs), atol=1e-5)


def test_a_tower_of_clips_gives_a_mean_that_knows_the_order(tmp_path):
    model = tiny_tower()
    model.save_pretrained(tmp_path)
    tiny_frames().image_processor.save_pretrained(tmp_path)
    vision = VisionFeatures.from_pretrained(tmp_path)
    assert (vision.num_frames, vision.loses_order) == (FRAMES, False)
    inputs = vision.process(clips(2))
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(tmp_path).eval()(**inputs).pooler_output
    assert torch.allclose(vision(inputs), wanted, atol=1e-5)
    assert not torch.allclose(vision({"pixel_values": inputs["pixel_values"].flip(1)}), wanted, atol=1e-3)
    with pytest.raises(UsageError, match="reads 4 frames of each clip, not 8"):
        VisionFeatures.from_pretrained(tmp_path, frames=8)
    with pytest.raises(UsageError, match="set --frames"):
        VisionFeatures(model.tower, vision.image_processor, pool="frames")
    with pytest.raises(UsageError, match="at least 1 frame"):
        VisionFeatures(model.tower, vision.image_processor, frames=0)


def test_an_image_shown_to_a_captioner_of_clips_is_repeated():
    captioner: HuggingFaceCaptioner = tiny_frames()
    picture = images(1)[0]
    shown = Opener.of(captioner.process).single(ArrayImage(np.asarray(picture)))
    assert len(shown) == FRAMES


def test_differences_are_what_has_changed_since_the_frame_before():
    tower = tiny_tower(layers=0, differences=True)
    states = torch.randn(2, FRAMES * 5, 32)
    found = tower.encoded(states).unflatten(1, (FRAMES, 5))
    seen = tower.norm(states).unflatten(1, (FRAMES, 5))
    for frame in range(FRAMES):
        change = seen[:, frame] - seen[:, max(frame - 1, 0)]  # nothing has changed before the first
        expected = seen[:, frame] + tower.temporal_position.weight[frame] + change @ tower.change.weight.T
        torch.testing.assert_close(found[:, frame], expected)
