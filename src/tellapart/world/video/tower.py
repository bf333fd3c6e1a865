"""The moving world's pretrained vision: ``world/backbone`` on every frame (frozen), and layers over the tokens of all frames.

The layers are taught what is in each cell and what happens there, as the still tower was taught what is in its cells; captioners
and features begin from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tellapart.captioners.clip_frames import ClipFrames, ClipFramesConfig
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.files import write_json
from tellapart.types import Batch, ObjectiveModule, StepOutput
from tellapart.world import spec as still
from tellapart.world.backbone import ACCURACY, CELLS, COLUMNS, INPUTS, image_processor
from tellapart.world.backbone import pixels as still_pixels
from tellapart.world.scenes import VALUES
from tellapart.world.schedule import History, Task, one_thread
from tellapart.world.video import FRAMES, MovingScene, load_moving_scenes, load_video_world
from tellapart.world.video.truth import TARGETS, VERBS

_NOTHING = -100  # cross_entropy's ignore_index

ANSWERS = {
    "shape": len(VALUES["shape"]) + 1,
    "colour": len(VALUES["colour"]),
    "size": len(VALUES["size"]),
    "texture": len(VALUES["texture"]),
    "verb": len(VERBS),
    "target": len(TARGETS),
    "turn": 3,
}
"""What is asked of each cell -> number of answers: the object that is first seen there (one more shape: none), its verb, where
it moves or what it turns, and whether its event is the first, the second or none."""


def clip_pixels(clips: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
    """``{"pixel_values": [B, 8, 3, 64, 64]}`` of lists of 64 x 64 frames: what the image processor gives, faster."""
    flat = still_pixels([frame for frames in clips for frame in frames])["pixel_values"]
    return {"pixel_values": flat.unflatten(0, (len(clips), -1))}


class ClipPixels:
    """``clip_pixels`` as a processor that is given frames."""

    num_frames = FRAMES

    def __call__(self, clips: list[Any]) -> dict[str, Tensor]:
        """``pixel_values [B, 8, 3, 64, 64]``."""
        return clip_pixels(clips)


def make_frames_tower(tower: Any, *, layers: int = 2) -> ClipFrames:
    """A ``ClipFrames`` around a copy of the still world's tower; the layers have random weights."""
    config = ClipFramesConfig(
        tower=tower.config.to_dict(),
        num_frames=FRAMES,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * tower.config.hidden_size,
        dropout=0.0,
    )
    model = ClipFrames(config)
    model.tower.load_state_dict(tower.state_dict())
    return model


def answers_of(scenes: Sequence[MovingScene]) -> tuple[Tensor, Tensor]:
    """``[M, 4, 7]`` long, the answers of each cell in the order of ``ANSWERS`` (-100 where there is no object), and ``[M]``
    backgrounds."""
    cells = torch.full((len(scenes), CELLS, len(ANSWERS)), _NOTHING)
    cells[:, :, 0] = len(VALUES["shape"])
    for row, moving in enumerate(scenes):
        for number, thing in enumerate(moving.scene.objects):
            event = moving.event_of(number)
            found = [values.index(getattr(thing, name)) for name, values in VALUES.items()]
            verb, to, turn = 0, 0, 2
            if event is not None:
                verb, to, turn = VERBS.index(event.verb), TARGETS.index(event.to), moving.events.index(event)
            if len(moving.events) < 2:
                turn = 2  # of a single event nothing is first or second
            cells[row, thing.row * COLUMNS + thing.column] = torch.tensor([*found, verb, to, turn])
    backgrounds = list(still.BACKGROUNDS)
    return cells, torch.tensor([backgrounds.index(moving.scene.background) for moving in scenes])


class FrameHeads(nn.Module):
    """Linear readings of the layers' states: of each cell's mean over frames, and of all cells from the pooled vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.ModuleDict({name: nn.Linear(width, count) for name, count in ANSWERS.items()})
        self.pooled = nn.ModuleDict({name: nn.Linear(width, CELLS * count) for name, count in ANSWERS.items()})
        self.background = nn.Linear(width, len(still.BACKGROUNDS))

    def read(self, states: Tensor, pooled: Tensor) -> dict[str, dict[str, Tensor]]:
        """Source -> answer -> ``[B, 4, values]`` logits, from ``states [B, F, 1 + 4, width]`` and ``pooled [B, width]``."""
        means = states[:, :, 1:].mean(dim=1)
        return {
            "cells": {name: head(means) for name, head in self.cells.items()},
            "pooled": {name: head(pooled).unflatten(1, (CELLS, -1)) for name, head in self.pooled.items()},
        }


class Happenings(ObjectiveModule):
    """Supervised prediction of what is in each cell and what happens there, by cross-entropy, the tower frozen.

    Args:
        tower: a ``ClipFrames``; its layers train.
        scenes: clip id -> its scene, for every clip that will come.
    """

    def __init__(self, tower: ClipFrames, scenes: Mapping[str, MovingScene]) -> None:
        super().__init__()
        tower.tower.requires_grad_(False).eval()
        self.tower, self.heads = tower, FrameHeads(tower.config.hidden_size)
        self._cells, self._background = answers_of(list(scenes.values()))
        self._row = {name: i for i, name in enumerate(scenes)}

    def collect(self, batch: Batch, step: int) -> Batch:
        """Nothing is drawn."""
        return batch

    def losses(self, batch: Batch) -> Iterator[StepOutput]:
        """One piece: the loss summed over clips."""
        read, background = self._read(batch)
        cells, ground = self._answers(batch)
        terms = [cross_entropy(background, ground, reduction="sum")]
        for logits in read.values():
            terms += [
                cross_entropy(
                    logits[name].flatten(0, 1), cells[:, :, i].flatten(), ignore_index=_NOTHING, reduction="sum"
                )
                / CELLS
                for i, name in enumerate(ANSWERS)
            ]
        logs = {f"accuracy/{name}": right.float() for name, right in self._right(read["cells"], cells).items()}
        yield StepOutput(torch.stack(terms).sum(), background.new_tensor(float(len(batch))), logs)

    def _answers(self, batch: Batch) -> tuple[Tensor, Tensor]:
        rows = torch.tensor([self._row[clip_id] for clip_id in batch.ids])
        device = self.heads.background.weight.device
        return self._cells[rows].to(device), self._background[rows].to(device)

    def _read(self, batch: Batch) -> tuple[dict[str, dict[str, Tensor]], Tensor]:
        states = self.tower.encoded(batch.inputs[INPUTS]["states"])
        pooled = self.tower.pooled(states)
        return self.heads.read(states.unflatten(1, (FRAMES, -1)), pooled), self.heads.background(pooled)

    @staticmethod
    def _right(logits: Mapping[str, Tensor], cells: Tensor) -> dict[str, Tensor]:
        filled = cells[:, :, 0] < len(VALUES["shape"])
        return {name: (logits[name].argmax(-1) == cells[:, :, i])[filled] for i, name in enumerate(ANSWERS)}

    @torch.no_grad()
    def accuracy(self, batch: Batch) -> dict[str, float]:
        """Percent right over objects, by the cells' own states and, as ``pooled_...``, by the pooled vector; ``background``."""
        read, background = self._read(batch)
        cells, ground = self._answers(batch)
        right = self._right(read["cells"], cells)
        right |= {f"pooled_{name}": found for name, found in self._right(read["pooled"], cells).items()}
        right["background"] = background.argmax(-1) == ground
        return {name: 100.0 * found.float().mean().item() for name, found in right.items()}


class TowerStates:
    """The frozen tower's states of clips, computed once and kept in memory, by clip id.

    Args:
        tower: computes them.
        dataset: the clips.
    """

    def __init__(self, tower: ClipFrames, dataset: CaptionDataset) -> None:
        examples = list(dataset)
        self._row = {example.id: i for i, example in enumerate(examples)}
        parts = [examples[start : start + 64] for start in range(0, len(examples), 64)]
        with torch.no_grad(), one_thread(), ThreadPoolExecutor(1) as ahead:
            read = ahead.map(_frames_of, parts)
            self._states = torch.cat([tower.tower_states(clip_pixels(clips)["pixel_values"]).half() for clips in read])

    def __call__(self, ids: Sequence[str]) -> dict[str, Tensor]:
        """``{"states": [B, 8 * 5, width]}`` float32."""
        return {"states": self._states[[self._row[clip_id] for clip_id in ids]].float()}

    def fingerprint(self, image_id: str) -> str:
        """The clip's id: states are of one data set."""
        return image_id


def _frames_of(examples: Sequence[Example]) -> list[Any]:
    return [example.image.frames(FRAMES) for example in examples]  # type: ignore[attr-defined]  # of the moving world


def build_tower(task: Task) -> History:
    """Teach the layers over the frames."""
    from transformers import CLIPVisionModel

    tower = CLIPVisionModel.from_pretrained(task.needs["world/backbone"])
    with seeded(task.name, task.seed):
        objective = Happenings(make_frames_tower(tower), load_moving_scenes("web", size=task.size))
    dataset = load_video_world("web", size=task.size)
    collate = Collate({}, features={INPUTS: TowerStates(objective.tower, dataset)})
    history = task.fit(objective, TrainingData(dataset, collate))
    objective.tower.eval().save_pretrained(task.folder)
    image_processor().save_pretrained(task.folder)
    write_json(task.folder / ACCURACY, held_out_accuracy(objective, task.size))
    return history


def held_out_accuracy(objective: Happenings, size: str) -> dict[str, float]:
    """Percent right on val, see ``accuracy``."""
    dataset = load_video_world("val", size=size)
    examiner = Happenings(objective.tower, load_moving_scenes("val", size=size))
    examiner.heads = objective.heads
    collate = Collate({}, features={INPUTS: TowerStates(objective.tower, dataset)})
    return examiner.eval().accuracy(collate(dataset.examples))
