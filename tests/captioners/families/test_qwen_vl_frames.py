"""Clips as Qwen2-VL and Qwen2.5-VL read videos: patches that span two frames, and positions in time."""

from __future__ import annotations

import logging

import pytest
import torch
from PIL import Image

from pictures import CAPTIONS, images
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.families.qwen_vl import FRAME_TOKENS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.evaluation.card.loading import loading_code
from tellapart.frames import use_num_frames
from tellapart.types import Batch, Decoding
from tiny.qwen2_5_vl import tiny_qwen2_5_vl
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny.qwen3_vl import tiny_qwen3_vl

reads_clips = pytest.mark.parametrize("make", [tiny_qwen2_vl, tiny_qwen2_5_vl])


def clips(count: int, frames: int) -> list[list[Image.Image]]:
    """Clips of two shapes, so that rows differ in length."""
    pictures = images(count * frames)
    shaped = [picture.resize([(32, 32), (64, 32)][i // frames % 2]) for i, picture in enumerate(pictures)]
    return [shaped[start : start + frames] for start in range(0, len(shaped), frames)]


def batch_of_clips(captioner: HuggingFaceCaptioner, count: int, frames: int) -> Batch:
    references = [[CAPTIONS[i]] for i in range(count)]
    inputs = {captioner.name: captioner.process(clips(count, frames))}
    return Batch([f"clip-{i}" for i in range(count)], references, inputs)


@reads_clips
def test_the_contract_holds_over_frames_and_their_order_matters(make, caplog):
    captioner = make()
    use_num_frames(captioner, 4, "data.num_frames")
    batch = batch_of_clips(captioner, 2, 4)
    assert batch.inputs["captioner"]["image_grid_thw"].tolist() == [[2, 4, 4], [2, 4, 8]]
    with caplog.at_level(logging.WARNING):
        check_captioner(captioner, batch)
    assert not [record for record in caplog.records if "order of frames" in record.getMessage()]


def patches_by_hand(frames: list[torch.Tensor], size: int) -> torch.Tensor:
    """As the published video processor orders them: groups of two frames, then windows of 2 x 2 patches; a patch is
    ``[channel, frame, row, column]``."""
    _, height, width = frames[0].shape
    rows = []
    for first, second in zip(frames[::2], frames[1::2], strict=True):
        for top in range(0, height, 2 * size):
            for left in range(0, width, 2 * size):
                for y, x in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    place = (slice(None), slice(top + y * size, top + (y + 1) * size))
                    place += (slice(left + x * size, left + (x + 1) * size),)
                    rows.append(torch.stack([first[place], second[place]], dim=1).flatten())
    return torch.stack(rows)


def test_a_patch_spans_two_frames_and_an_odd_clip_repeats_its_last():
    captioner = tiny_qwen2_vl()
    captioner.num_frames = 3
    (clip,) = clips(1, 3)
    processor = captioner.image_processor
    mean, std = (torch.tensor(v)[:, None, None] for v in (processor.image_mean, processor.image_std))
    pixels = [torch.tensor(list(f.tobytes())).view(f.height, f.width, 3).permute(2, 0, 1) / 255 for f in clip]
    pixels = [(frame - mean) / std for frame in pixels]
    inputs = captioner.process([clip])
    torch.testing.assert_close(
        inputs["pixel_values"][0], patches_by_hand([*pixels, pixels[2]], 8), atol=1e-5, rtol=1e-5
    )
    backwards = captioner.family.frames_reversed(inputs)["pixel_values"][0]
    torch.testing.assert_close(backwards, patches_by_hand([pixels[2], *pixels[::-1]], 8), atol=1e-5, rtol=1e-5)


@reads_clips
def test_the_plain_model_reads_the_same(make):
    """Its own forward, given the patches as ``pixel_values_videos``."""
    captioner = make()
    captioner.num_frames = 4
    text = captioner.family.rendered()
    assert text.count("<|vision_start|><|video_pad|><|vision_end|>") == 1
    assert "<|image_pad|>" not in text
    batch = batch_of_clips(captioner, 2, 4)
    for row in range(2):
        rollout = captioner.tokenize(batch, [CAPTIONS[0]], torch.tensor([row]))
        inputs = {name: value[row : row + 1] for name, value in batch.inputs["captioner"].items()}
        real = inputs["attention_mask"].bool()[0]
        ids = torch.cat([inputs["input_ids"][:, real], rollout.tokens], dim=1)
        model = captioner.family.model
        types = 2 * (ids == model.config.video_token_id).int()
        grid = inputs["image_grid_thw"]
        given = {"video_grid_thw": grid, "mm_token_type_ids": types}
        if make is tiny_qwen2_5_vl:
            given["second_per_grid_ts"] = torch.tensor([2.0])  # two frames, one second each
        pixels = inputs["pixel_values"][0, : int(grid.prod())]
        with torch.no_grad():
            logits = model(
                input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values_videos=pixels, **given
            ).logits
            wanted = logits.log_softmax(-1)[0, -len(rollout.tokens[0]) - 1 : -1].gather(1, rollout.tokens[0][:, None])
            assert torch.allclose(captioner(rollout).logprobs[0], wanted[:, 0], atol=1e-4)


def test_frames_are_no_larger_than_the_published_limit():
    captioner = tiny_qwen2_vl(max_pixels=2**20)
    still = captioner.process([Image.new("RGB", (640, 640))])["image_grid_thw"][0]
    assert int(still.prod()) // 4 == 1600
    captioner.num_frames = 2
    clip = captioner.process([2 * [Image.new("RGB", (640, 640))]])["image_grid_thw"][0]
    assert FRAME_TOKENS * 0.9 < int(clip.prod()) // 4 <= FRAME_TOKENS


def test_a_saved_captioner_of_clips_stays_one(tmp_path):
    captioner = tiny_qwen2_5_vl(tmp_path / "stills")
    captioner.num_frames = 4
    captioner.save(tmp_path / "clips")
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "clips").eval()
    assert loaded.num_frames == 4
    assert "AutoProcessor" in loading_code(tmp_path / "stills", "x", None)
    assert loading_code(tmp_path / "clips", "x", None) is None, "the model card's code shows photos"
    batch = batch_of_clips(captioner, 2, 4)
    decoding = Decoding(max_new_tokens=5)
    assert loaded.generate(batch, decoding).texts == captioner.generate(batch, decoding).texts


def test_what_cannot_be_read_is_refused():
    with pytest.raises(UsageError, match="the captioner reads stills"):
        use_num_frames(tiny_qwen3_vl(), 8, "data.num_frames")
    captioner = tiny_qwen2_vl()
    captioner.num_frames = 2
    with pytest.raises(UsageError, match="A prompt holds one clip"):
        captioner.family.rendered(2)
    captioner.tokenizer.chat_template = "{{ messages[0]['role'] }}"
    with pytest.raises(UsageError, match="has 0 places for an image instead of one"):
        captioner.family.rendered()
