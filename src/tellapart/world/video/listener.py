"""The moving world's dual encoder: CLIP4Clip's sequential transformer over the still world's tower."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tellapart.captioners.clip_frames import ClipFrames
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.clip4clip import Clip4Clip, Clip4ClipConfig, Temporal
from tellapart.objectives.contrastive import Contrastive
from tellapart.world.backbone import image_processor
from tellapart.world.schedule import History, Task
from tellapart.world.video import FRAMES, load_moving_scenes, load_video_world
from tellapart.world.video.captions import describe, write_as_annotator
from tellapart.world.video.negatives import hard_negative
from tellapart.world.video.tower import TowerStates, make_frames_tower
from tellapart.world.video.vocabulary import MAX_LENGTH, build_tokenizer
from tellapart.world.vocabulary import text_tower

DETAIL = (2, 3)
"""For each n, the longest of n further annotators' captions is among a clip's texts."""

WIDTH = 128
"""Of the space that clips and texts share."""


def make_listener(tower: Any, *, temporal: Temporal = "transformer", layers: int = 2) -> ClipListener:
    """A CLIP4Clip around a copy of the still world's tower, which is frozen; the rest has random weights."""
    tokenizer = build_tokenizer()
    vision = tower.config.to_dict() | {"projection_dim": WIDTH}
    config = Clip4ClipConfig(
        text_config=text_tower(tokenizer, longest=MAX_LENGTH),
        vision_config=vision,
        projection_dim=WIDTH,
        num_frames=FRAMES,
        temporal=temporal,
        temporal_layers=layers,
        temporal_heads=4,
    )
    model = Clip4Clip(config)
    model.vision_model.load_state_dict(tower.state_dict())
    model.vision_model.requires_grad_(False)
    return ClipListener.from_parts(model, image_processor(), tokenizer, name="listener", prefix="")


class FrameStates:
    """The frozen tower's states of the frames' class tokens, computed once, as ``Clip4Clip`` takes them.

    Args:
        states: of the tower.
    """

    def __init__(self, states: TowerStates) -> None:
        self.states = states

    def __call__(self, ids: Sequence[str]) -> dict[str, Tensor]:
        """``{"pixel_values": [B, 8, width]}``."""
        return {"pixel_values": self.states(ids)["states"].unflatten(1, (FRAMES, -1))[:, :, 0].contiguous()}

    def fingerprint(self, image_id: str) -> str:
        """That of the tower's states."""
        return self.states.fingerprint(image_id)


def listener_texts(size: str) -> CaptionDataset:
    """The web clips with their captions and some of more detail."""
    scenes = load_moving_scenes("web", size=size)
    dataset = load_video_world("web", size=size)

    def texts(example: Example) -> tuple[str, ...]:
        rng = random.Random(f"video-{example.id}")
        further = [
            max((write_as_annotator(describe(scenes[example.id], rng), rng) for _ in range(count)), key=len)
            for count in DETAIL
        ]
        return (*example.references, *further)

    return CaptionDataset([Example(e.id, e.image, texts(e)) for e in dataset], name=dataset.name)


def build_listener(task: Task) -> History:
    """Train the reward listener of clips."""
    from transformers import CLIPVisionModel

    tower = CLIPVisionModel.from_pretrained(task.needs["world/backbone"])
    with seeded(task.name, task.seed):
        listener = make_listener(tower)
    dataset = listener_texts(task.size)
    frames: ClipFrames = make_frames_tower(tower, layers=0)
    states = FrameStates(TowerStates(frames, dataset))
    data = TrainingData(dataset, Collate({}, features={listener.name: states}))
    history = task.fit(Contrastive(listener, negative=hard_negative), data)
    listener.save(task.folder)
    return history
