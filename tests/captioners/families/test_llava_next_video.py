"""Clips as LLaVA-NeXT-Video reads them: pooled frames one after the other."""

from __future__ import annotations

import logging

import pytest
import torch
from PIL import Image
from transformers import LlavaNextVideoForConditionalGeneration

from family_checks import check_training, lengths, pictures
from pictures import CAPTIONS, images
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.frames import use_num_frames
from tellapart.objectives.scst import SCST
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Batch, Decoding
from tiny.llava_next_video import tiny_llava_next_video


def clips(count: int, frames: int) -> list[list[Image.Image]]:
    """Wide clips, whose sides are cut off."""
    pictures = [image.resize((96, 64)) for image in images(count * frames)]
    return [pictures[start : start + frames] for start in range(0, len(pictures), frames)]


def batch_of_clips(captioner: HuggingFaceCaptioner, count: int, frames: int) -> Batch:
    references = [[CAPTIONS[i]] for i in range(count)]
    inputs = {captioner.name: captioner.process(clips(count, frames))}
    return Batch([f"clip-{i}" for i in range(count)], references, inputs)


def test_the_contract_holds_over_frames_and_their_order_matters(caplog):
    captioner = tiny_llava_next_video()
    assert captioner.num_frames == 8
    use_num_frames(captioner, 3, "data.num_frames")
    batch = batch_of_clips(captioner, 2, 3)
    inputs = batch.inputs["captioner"]
    assert inputs["pixel_values"].shape == (2, 3, 3, 64, 64)
    assert (inputs["input_ids"] == captioner.family.image_token).sum(dim=1).tolist() == [12, 12], (
        "4 tokens of each frame"
    )
    with caplog.at_level(logging.WARNING):
        check_captioner(captioner, batch)
    assert not [record for record in caplog.records if "order of frames" in record.getMessage()]


@pytest.mark.parametrize("pool", ["average", "max"])
def test_the_plain_model_reads_the_same(pool):
    """Its own forward; a frame is scaled to 64 pixels on its shorter side, and its middle is cut out."""
    captioner = tiny_llava_next_video(pool=pool)
    captioner.num_frames = 2
    assert captioner.family.rendered() == f"USER: <video>\n{captioner.family.default_prompt} ASSISTANT:"
    batch = batch_of_clips(captioner, 1, 2)
    inputs = batch.inputs["captioner"]
    frame = torch.tensor(list(clips(1, 2)[0][1].tobytes())).view(64, 96, 3)[:, 16:80].permute(2, 0, 1) / 255
    mean, std = (
        torch.tensor(v)[:, None, None]
        for v in (captioner.image_processor.image_mean, captioner.image_processor.image_std)
    )
    torch.testing.assert_close(inputs["pixel_values"][0, 1], (frame - mean) / std, atol=1e-5, rtol=1e-5)
    rollout = captioner.tokenize(batch, [CAPTIONS[0]], torch.zeros(1, dtype=torch.long))
    ids = torch.cat([inputs["input_ids"], rollout.tokens], dim=1)
    with torch.no_grad():
        logits = captioner.family.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values_videos=inputs["pixel_values"]
        ).logits
        wanted = logits.log_softmax(-1)[0, -len(rollout.tokens[0]) - 1 : -1].gather(1, rollout.tokens[0][:, None])
        assert torch.allclose(captioner(rollout).logprobs[0], wanted[:, 0], atol=1e-4)


@pytest.mark.parametrize("lora", [False, True])
def test_it_trains_and_a_saved_captioner_stays_one(tmp_path, lora):
    tiny_llava_next_video(tmp_path / "start")
    options = {"lora": LoraOptions(r=2)} if lora else {}
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path / "start", **options)
    captioner.num_frames = 2
    before = {name: p.detach().clone() for name, p in captioner.named_parameters()}
    config = TrainConfig(
        output_dir=tmp_path / "run", max_steps=2, per_device_train_batch_size=2, logging_steps=1, learning_rate=1e-3
    )
    objective = SCST(captioner, lengths, baseline="leave_one_out", num_generations=2, max_new_tokens=5)
    data = TrainingData(pictures(4), Collate({captioner.name: captioner.process}))  # stills: one frame repeated
    history = train(objective, data, config).history
    check_training(type("Fit", (), {"history": history, "before": before, "captioner": captioner}))
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "run" / "checkpoint-2" / "captioner").eval()
    assert loaded.num_frames == 2
    batch, decoding = batch_of_clips(captioner, 2, 2), Decoding(max_new_tokens=5)
    assert loaded.generate(batch, decoding).texts == captioner.eval().generate(batch, decoding).texts
    if not lora:
        LlavaNextVideoForConditionalGeneration.from_pretrained(tmp_path / "run" / "checkpoint-2" / "captioner")


def test_what_cannot_be_read_is_refused():
    with pytest.raises(UsageError, match="pools frames by 'conv', which is not supported"):
        tiny_llava_next_video(pool="conv")
    with pytest.raises(UsageError, match="crops to 48 x 48 pixels, but the model reads 64 x 64"):
        tiny_llava_next_video(crop=48)
    with pytest.raises(UsageError, match="2 places for an image instead of one"):
        tiny_llava_next_video(prompt="what is in <video>")
    with pytest.raises(UsageError, match="A prompt holds one clip"):
        tiny_llava_next_video().family.rendered(2)
