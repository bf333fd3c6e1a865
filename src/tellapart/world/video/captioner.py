"""The moving world's captioner before post-training: a frozen tower on every frame, temporal layers and a small GPT-2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tellapart.captioners.clip_frames import ClipFrames
from tellapart.captioners.fresh import with_gpt2
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.objectives.xe import XE
from tellapart.world.backbone import image_processor
from tellapart.world.schedule import History, Task
from tellapart.world.video import load_video_world
from tellapart.world.video.tower import TowerStates
from tellapart.world.video.vocabulary import MAX_LENGTH, build_tokenizer

CAPTIONS_PER_CLIP = 2


def make_captioner(tower: ClipFrames, *, width: int = 192, layers: int = 2) -> HuggingFaceCaptioner:
    """A ``VisionEncoderDecoderModel`` of ``tower`` and a GPT-2 with random weights; the tower of single frames is frozen."""
    from transformers import GPT2Config

    tokenizer: Any = build_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=MAX_LENGTH + 8,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        n_inner=4 * width,
        add_cross_attention=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = with_gpt2(tower, config, tokenizer)
    return HuggingFaceCaptioner.from_parts(model, image_processor(), tokenizer, max_caption_tokens=MAX_LENGTH)


def untrained(tower: Path) -> HuggingFaceCaptioner:
    """A captioner whose decoder has random weights, from the folder of ``world/video-backbone``."""
    return make_captioner(ClipFrames.from_pretrained(tower))


def build_xe(task: Task) -> History:
    """Teach the captioner on the training split, temporal layers too."""
    with seeded(task.name, task.seed):
        captioner = untrained(task.needs["world/video-backbone"])
    dataset = load_video_world("train", size=task.size)
    # the tower of single frames is frozen: its states of all clips are computed once
    states = TowerStates(captioner.family.model.encoder, dataset)
    data = TrainingData(dataset, Collate({}, features={captioner.name: states}))
    history = task.fit(XE(captioner, captions_per_image=CAPTIONS_PER_CLIP), data)
    captioner.eval().save(task.folder)
    return history
