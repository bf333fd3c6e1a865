"""The moving world's pretrained vision: ``world/backbone`` on every frame (frozen), and layers over the tokens of all frames.

The layers are taught what is in each cell and what happens there, as the still tower was taught what is in its cells; captioners
and features begin from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tellapart.clip_frames import ClipFrames, ClipFramesConfig
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.files import write_json
from tellapart.types import Batch, ObjectiveModule, StepOutput
from tellapart.world import spec as still
from tellapart.world.backbone import ACCURACY, CELLS, COLUMNS, HEADS, INPUTS, image_processor
from tellapart.world.backbone import pixels as still_pixels
from tellapart.world.scenes import VALUES
from tellapart.world.schedule import History, Task, one_thread
from tellapart.world.video import FRAMES, MovingScene, load_moving_scenes, load_video_world
from tellapart.world.video.scenes import backwards
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
it moves or what it turns, and whether its event is the first of two, the second or none."""


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
        differences=True,
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
            if len(moving.events) == 1 and event is not None:
                turn = _NOTHING  # it is neither first nor second
            cells[row, thing.row * COLUMNS + thing.column] = torch.tensor([*found, verb, to, turn])
    backgrounds = list(still.BACKGROUNDS)
    return cells, torch.tensor([backgrounds.index(moving.scene.background) for moving in scenes])


class FrameHeads(nn.Module):
    """Linear readings of the layers' states: of each cell's mean over frames, and of all cells from the pooled vector.

    They are kept next to the tower in ``HEADS``.

    Args:
        width: of the states.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.ModuleDict({name: nn.Linear(width, count) for name, count in ANSWERS.items()})
        self.place = nn.Linear(width, CELLS)
        self.ground = nn.Linear(width, len(still.BACKGROUNDS))
        self.pooled = nn.ModuleDict({name: nn.Linear(width, CELLS * count) for name, count in ANSWERS.items()})
        self.background = nn.Linear(width, len(still.BACKGROUNDS))

    names = (*ANSWERS, "place", "ground")
    """What ``of_tokens`` reads."""

    def of_tokens(self) -> list[nn.Linear]:
        """What is read off a cell's mean: each of ``ANSWERS``, its cell, the background."""
        return [*(self.cells.get_submodule(name) for name in ANSWERS), self.place, self.ground]  # type: ignore[list-item]

    def read(self, states: Tensor, pooled: Tensor) -> dict[str, dict[str, Tensor]]:
        """Source -> answer -> ``[B, 4, values]`` logits, from ``states [B, F, 1 + 4, width]`` and ``pooled [B, width]``."""
        means = states[:, :, 1:].mean(dim=1)
        return {
            "cells": {name: head(means) for name, head in zip(self.names, self.of_tokens(), strict=True)},
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
            terms += [_sum_over_cells(logits[name], cells[:, :, i]) for i, name in enumerate(ANSWERS)]
        places = torch.arange(CELLS, device=ground.device).expand(len(batch), -1)
        terms.append(_sum_over_cells(read["cells"]["place"], places))
        terms.append(_sum_over_cells(read["cells"]["ground"], ground[:, None].expand(-1, CELLS)))
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
        asked = {name: filled & (cells[:, :, i] != _NOTHING) for i, name in enumerate(ANSWERS)}
        return {name: (logits[name].argmax(-1) == cells[:, :, i])[asked[name]] for i, name in enumerate(ANSWERS)}

    @torch.no_grad()
    def accuracy(self, batch: Batch) -> dict[str, float]:
        """Percent right over objects, by the cells' own states and, as ``pooled_...``, by the pooled vector; ``background``."""
        read, background = self._read(batch)
        cells, ground = self._answers(batch)
        right = self._right(read["cells"], cells)
        right |= {f"pooled_{name}": found for name, found in self._right(read["pooled"], cells).items()}
        right["background"] = background.argmax(-1) == ground
        return {name: 100.0 * found.float().mean().item() for name, found in right.items()}


def _sum_over_cells(logits: Tensor, answers: Tensor) -> Tensor:
    """Cross-entropy summed over clips and cells, divided by the number of cells in a clip, those not asked for included."""
    return cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=_NOTHING, reduction="sum") / CELLS


BACKWARDS = ", backwards"
"""Ends the id of a clip that is shown from its last frame to its first."""


class TowerStates:
    """The frozen tower's states of clips, computed once and kept in memory, by clip id.

    With ``BACKWARDS`` after the id they are those of the clip shown backwards.

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
        states = self._states[[self._row[clip_id.removesuffix(BACKWARDS)] for clip_id in ids]].float()
        for row, clip_id in enumerate(ids):
            if clip_id.endswith(BACKWARDS):
                states[row] = states[row].unflatten(0, (FRAMES, -1)).flip(0).flatten(0, 1)
        return {"states": states}

    def fingerprint(self, image_id: str) -> str:
        """The clip's id: states are of one data set."""
        return image_id


def _frames_of(examples: Sequence[Example]) -> list[Any]:
    return [example.image.frames(FRAMES) for example in examples]  # type: ignore[attr-defined]  # of the moving world


def both_ways(scenes: Mapping[str, MovingScene]) -> dict[str, MovingScene]:
    """All clips, and all of them shown backwards: twice as many to learn from, without another frame to draw."""
    return {**scenes, **{f"{name}{BACKWARDS}": backwards(moving) for name, moving in scenes.items()}}


def build_tower(task: Task) -> History:
    """Teach the layers over the frames."""
    from transformers import CLIPVisionModel

    tower = CLIPVisionModel.from_pretrained(task.needs["world/backbone"])
    scenes = load_moving_scenes("web", size=task.size)
    with seeded(task.name, task.seed):
        objective = Happenings(make_frames_tower(tower), both_ways(scenes))
    dataset = load_video_world("web", size=task.size)
    collate = Collate({}, features={INPUTS: TowerStates(objective.tower, dataset)})
    shown = [example for one in dataset for example in (one, replace(one, id=f"{one.id}{BACKWARDS}"))]
    history = task.fit(objective, TrainingData(CaptionDataset(shown, name=dataset.name), collate))
    objective.tower.eval().save_pretrained(task.folder)
    image_processor().save_pretrained(task.folder)
    save_file(objective.heads.state_dict(), task.folder / HEADS)
    write_json(task.folder / ACCURACY, held_out_accuracy(objective, task.size))
    return history


def load_frame_heads(folder: Path) -> FrameHeads:
    """The reading heads of ``world/video-backbone``, from its folder."""
    weights = load_file(folder / HEADS)
    heads = FrameHeads(weights["place.weight"].shape[1])
    heads.load_state_dict(weights)
    return heads.eval()


def held_out_accuracy(objective: Happenings, size: str) -> dict[str, float]:
    """Percent right on val, see ``accuracy``."""
    dataset = load_video_world("val", size=size)
    examiner = Happenings(objective.tower, load_moving_scenes("val", size=size))
    examiner.heads = objective.heads
    collate = Collate({}, features={INPUTS: TowerStates(objective.tower, dataset)})
    return examiner.eval().accuracy(collate(dataset.examples))
