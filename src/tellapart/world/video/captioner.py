"""The moving world's captioner before post-training: a frozen tower on every frame, temporal layers and a small GPT-2."""

from __future__ import annotations

from pathlib import Path

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.clip_frames import ClipFrames
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.objectives.xe import XE
from tellapart.world.captioner import make_captioner
from tellapart.world.schedule import History, Task
from tellapart.world.video import load_video_world
from tellapart.world.video.tower import TowerStates
from tellapart.world.video.vocabulary import MAX_LENGTH, build_tokenizer

CAPTIONS_PER_CLIP = 2


def untrained(tower: Path) -> HuggingFaceCaptioner:
    """A captioner whose decoder has random weights, from the folder of ``world/video-backbone``."""
    return make_captioner(ClipFrames.from_pretrained(tower), tokenizer=build_tokenizer(), max_length=MAX_LENGTH)


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
