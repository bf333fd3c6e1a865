"""Clips as SmolVLM2 reads them: a series of whole frames in the prompt."""

from __future__ import annotations

import logging

import pytest
import torch

from pictures import CAPTIONS, images
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.frames import use_num_frames
from tellapart.types import Batch, Decoding
from tiny.idefics3 import tiny_smolvlm
from tiny_models import tiny_ved


def batch_of_clips(captioner: HuggingFaceCaptioner, count: int, frames: int) -> Batch:
    pictures = images(count * frames)
    clips = [pictures[start : start + frames] for start in range(0, len(pictures), frames)]
    references = [[CAPTIONS[i]] for i in range(count)]
    return Batch([f"clip-{i}" for i in range(count)], references, {captioner.name: captioner.process(clips)})


def test_the_contract_holds_over_frames_and_their_order_matters(caplog):
    captioner = tiny_smolvlm()
    use_num_frames(captioner, 3, "data.num_frames")
    batch = batch_of_clips(captioner, 2, 3)
    assert batch.inputs["captioner"]["pixel_values"].shape[:2] == (2, 3)
    with caplog.at_level(logging.WARNING):
        check_captioner(captioner, batch)
    assert not [record for record in caplog.records if "order of frames" in record.getMessage()]


def test_the_prompt_shows_the_frames_in_turn_and_the_plain_model_reads_the_same():
    captioner = tiny_smolvlm()
    captioner.num_frames = 2
    text = captioner.family.rendered()
    assert text.count("<image>") == 2
    assert (
        "series of two frames from a 0:00:02 [H:MM:SS] video.\n\nFrame from 00:00:<image>\nFrame from 00:01:<image>\n\n"
        in text
    )
    batch = batch_of_clips(captioner, 1, 2)
    rollout = captioner.tokenize(batch, [CAPTIONS[0]], torch.zeros(1, dtype=torch.long))
    inputs = batch.inputs["captioner"]
    ids = torch.cat([inputs["input_ids"], rollout.tokens], dim=1)
    with torch.no_grad():
        logits = captioner.family.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=inputs["pixel_values"]
        ).logits
        wanted = logits.log_softmax(-1)[0, -len(rollout.tokens[0]) - 1 : -1].gather(1, rollout.tokens[0][:, None])[:, 0]
        assert torch.allclose(captioner(rollout).logprobs[0], wanted, atol=1e-4)


def test_a_saved_captioner_of_clips_stays_one(tmp_path):
    captioner = tiny_smolvlm()
    captioner.num_frames = 3
    captioner.set_prompt("What happens?")
    assert captioner.num_frames == 3
    captioner.save(tmp_path)
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path).eval()
    assert loaded.num_frames == 3
    batch = batch_of_clips(captioner, 2, 3)
    decoding = Decoding(max_new_tokens=5)
    assert loaded.generate(batch, decoding).texts == captioner.generate(batch, decoding).texts
    assert tiny_smolvlm().num_frames is None


def test_captioners_that_read_stills_only_refuse_frames():
    with pytest.raises(UsageError, match="the captioner reads stills"):
        use_num_frames(tiny_ved(), 8, "data.num_frames")
