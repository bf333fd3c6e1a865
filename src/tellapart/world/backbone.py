"""The world's pretrained vision: a small CLIP tower that was taught what is in each cell of a picture.

A contrastive listener trained from scratch on so few pictures learns colours and little else, and everything that is
trained on top of it then names wrong shapes. So the tower comes first, supervised, as photo captioners start from a
pretrained one; listener, judge and captioner begin from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.files import write_json
from tellapart.types import Batch, ObjectiveModule, StepOutput
from tellapart.world import Scene, load_scenes, load_world, spec
from tellapart.world.render import SIDE
from tellapart.world.scenes import VALUES
from tellapart.world.schedule import History, Task

if TYPE_CHECKING:
    from PIL import Image

INPUTS = "vision"
"""Key of the tower's tensors in ``batch.inputs``."""

ACCURACY = "accuracy.json"
"""What was read off val with the stage's heads, kept in its folder."""

HEADS = "heads.safetensors"
"""The heads themselves: models that verify captions start from what they read."""

SIZES = {name: len(values) for name, values in VALUES.items()}
"""Attribute -> number of its values."""

ROWS, COLUMNS = len(spec.ROWS), len(spec.COLUMNS)
CELLS = ROWS * COLUMNS

PAIR_WEIGHTS = {pair: 0.4 if pair == ("shape", "colour") else 0.1 for pair in combinations(SIZES, 2)}
"""Pairs of attributes that the CLS state tells, so that "a red star" has something to be compared with -> weight in the loss.
Ten times as much would have the shapes learnt in twice as many steps; a small share for the rest keeps sizes and textures."""

_NOTHING = -100  # cross_entropy's ignore_index


def image_processor() -> Any:
    """The preprocessing that listener, judge and captioner are saved with: 64 x 64, values from -1 to 1."""
    from transformers import CLIPImageProcessorPil

    side = {"height": SIDE, "width": SIDE}
    return CLIPImageProcessorPil(size=side, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def pixels(images: Sequence[Image.Image]) -> dict[str, Tensor]:
    """``{"pixel_values": [B, 3, 64, 64]}`` of 64 x 64 pictures: what ``image_processor`` gives, in a third of the time."""
    stacked = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    return {"pixel_values": stacked.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)}


def make_tower(*, width: int = 128, mlp_width: int = 512, layers: int = 3) -> Any:
    """A ``CLIPVisionModel`` with one token for each cell (and CLS), with random weights."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=spec.CELL,
        projection_dim=64,
    )
    return CLIPVisionModel(config)


@dataclass(frozen=True)
class Answers:
    """What is to be read off M pictures.

    Args:
        cells: ``[M, 4, 4]`` long: cells in reading order; shape, colour, size, texture as numbered by ``VALUES``. In an empty
            cell the shape is one more than the last and the rest is not asked for (-100).
        background: ``[M]`` long.
        pairs: ``[M, P]`` 0 or 1: which combinations of two attributes some object has, pair by pair as in ``PAIR_WEIGHTS``.
    """

    cells: Tensor
    background: Tensor
    pairs: Tensor

    @staticmethod
    def of(scenes: Sequence[Scene]) -> Answers:
        """The answers for ``scenes``."""
        cells = torch.full((len(scenes), CELLS, len(SIZES)), _NOTHING)
        cells[:, :, 0] = SIZES["shape"]
        for number, scene in enumerate(scenes):
            for thing in scene.objects:
                attributes = [values.index(getattr(thing, name)) for name, values in VALUES.items()]
                cells[number, thing.row * COLUMNS + thing.column] = torch.tensor(attributes)
        backgrounds = list(spec.BACKGROUNDS)
        background = torch.tensor([backgrounds.index(scene.background) for scene in scenes])
        return Answers(cells, background, torch.cat([_present(cells, pair) for pair in PAIR_WEIGHTS], dim=1))

    def select(self, index: Tensor, device: torch.device) -> Answers:
        """The answers at ``index``, on ``device``."""
        return Answers(*(part[index].to(device) for part in (self.cells, self.background, self.pairs)))

    @property
    def filled(self) -> Tensor:
        """``[M, 4]`` bool: cells with an object."""
        return self.cells[:, :, 0] < SIZES["shape"]


def _present(cells: Tensor, pair: tuple[str, str]) -> Tensor:
    """``[M, values of the one * values of the other]``: 1 where an object has the two together."""
    first, second = (cells[:, :, list(SIZES).index(name)] for name in pair)
    filled = cells[:, :, 0] < SIZES["shape"]
    code = (first * SIZES[pair[1]] + second).masked_fill(~filled, 0)
    table = torch.zeros(*code.shape, SIZES[pair[0]] * SIZES[pair[1]])
    return table.scatter_(2, code[..., None], filled[..., None].float()).amax(dim=1)


class AttributeHeads(nn.Module):
    """Linear readings of the tower's states: they teach and measure it, and are kept next to it in ``HEADS``.

    Args:
        width: of the tower's states.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # One more shape: none. The kind is shape and colour together (and none), read one layer earlier, see below.
        values = {name: size + (name == "shape") for name, size in SIZES.items()}
        self.cells = nn.ModuleDict({name: nn.Linear(width, size) for name, size in values.items()})
        self.kind = nn.Linear(width, SIZES["shape"] * SIZES["colour"] + 1)
        self.place = nn.Linear(width, CELLS)
        self.ground = nn.Linear(width, len(spec.BACKGROUNDS))
        self.background = nn.Linear(width, len(spec.BACKGROUNDS))
        self.pairs = nn.Linear(width, sum(SIZES[a] * SIZES[b] for a, b in PAIR_WEIGHTS))
        self.map = nn.ModuleDict({name: nn.Linear(width, CELLS * size) for name, size in values.items()})

    def of_tokens(self) -> list[nn.Linear]:
        """What is read off the last state of a cell's token: each attribute, its cell, the background."""
        return [*(self.cells.get_submodule(name) for name in SIZES), self.place, self.ground]  # type: ignore[list-item]

    def mapped(self, states: Tensor) -> dict[str, Tensor]:
        """Attribute -> ``[B, 4, values]`` logits of what is in each cell, from CLS states ``[B, width]``."""
        return {name: head(states).unflatten(1, (CELLS, -1)) for name, head in self.map.items()}


class Attributes(ObjectiveModule):
    """Supervised attribute prediction, by cross-entropy.

    Each cell's token predicts shape, colour, size and texture of the object in it, *which cell it is*, and the background.
    The CLS state predicts the background, which pairs of attributes occur together, and *for each cell* shape (or none),
    colour, size and texture. Without the two that ask where, nothing trained on the tower can see a place. CLS can only
    collect what the cells' tokens hold one layer before the last, so these predict shape and colour as one answer.

    Args:
        tower: a ``CLIPVisionModel`` as ``make_tower`` makes it.
        scenes: image id -> its scene, for every image that will come.
    """

    def __init__(self, tower: Any, scenes: Mapping[str, Scene]) -> None:
        super().__init__()
        self.tower, self.heads = tower, AttributeHeads(tower.config.hidden_size)
        self._answers, self._row = Answers.of(list(scenes.values())), {name: i for i, name in enumerate(scenes)}

    def answers(self, ids: Sequence[str]) -> Answers:
        """What is to be read off the images ``ids``."""
        rows = torch.tensor([self._row[image_id] for image_id in ids])
        return self._answers.select(rows, self.heads.background.weight.device)

    def collect(self, batch: Batch, step: int) -> Batch:
        """Nothing is drawn."""
        return batch

    def losses(self, batch: Batch) -> Iterator[StepOutput]:
        """One piece: the loss summed over images."""
        answers, (early, last) = self.answers(batch.ids), self._states(batch)
        weights = _pair_weights().to(last.device)
        terms = [
            cross_entropy(self.heads.background(last[:, 0]), answers.background, reduction="sum"),
            _sum_over_cells(self.heads.kind(early[:, 1:]), _kinds(answers.cells)),
            binary_cross_entropy_with_logits(self.heads.pairs(last[:, 0]), answers.pairs, weights, reduction="sum"),
        ]
        logits, mapped = self._cells(last), self.heads.mapped(last[:, 0])
        for i, name in enumerate(SIZES):
            terms += [_sum_over_cells(found[name], answers.cells[:, :, i]) for found in (logits, mapped)]
        places = torch.arange(CELLS, device=last.device).expand(len(batch), -1)
        terms += [
            _sum_over_cells(self.heads.place(last[:, 1:]), places),
            _sum_over_cells(self.heads.ground(last[:, 1:]), answers.background[:, None].expand(-1, CELLS)),
        ]
        right = [(logits[name].argmax(-1) == answers.cells[:, :, i])[answers.filled] for i, name in enumerate(SIZES)]
        logs = {f"accuracy/{name}": hits.float() for name, hits in zip(SIZES, right, strict=True)}
        yield StepOutput(torch.stack(terms).sum(), last.new_tensor(float(len(batch))), logs)

    def _states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """``[B, 1 + cells, width]`` states of the last layer but one, and of the last."""
        output = self.tower(**batch.inputs[INPUTS], output_hidden_states=True)
        return output.hidden_states[-2], output.last_hidden_state

    def _cells(self, last: Tensor) -> dict[str, Tensor]:
        """Attribute -> ``[B, 4, values]`` logits, each cell's from its own token."""
        return {name: head(last[:, 1:]) for name, head in self.heads.cells.items()}

    @torch.no_grad()
    def accuracy(self, batch: Batch) -> dict[str, float]:
        """Percent right: attributes over objects, empty cells, background over images; of the pairs there are, those found;
        ``place`` over tokens of filled cells; ``map_...`` what CLS says of a cell, and ``map_object`` all of it at once."""
        answers, (_, last) = self.answers(batch.ids), self._states(batch)
        found = {name: logits.argmax(-1) for name, logits in self._cells(last).items()}
        right = {name: (found[name] == answers.cells[:, :, i])[answers.filled] for i, name in enumerate(SIZES)}
        right["empty"] = (found["shape"] == SIZES["shape"])[~answers.filled]
        places = self.heads.place(last[:, 1:]).argmax(-1)
        right["place"] = (places == torch.arange(CELLS, device=places.device))[answers.filled]
        mapped = {name: logits.argmax(-1) for name, logits in self.heads.mapped(last[:, 0]).items()}
        hits = torch.stack([mapped[name] == answers.cells[:, :, i] for i, name in enumerate(SIZES)], dim=-1)
        right |= {f"map_{name}": hits[..., i][answers.filled] for i, name in enumerate(SIZES)}
        right["map_object"] = hits.all(dim=-1)[answers.filled]
        right["map_empty"] = (mapped["shape"] == SIZES["shape"])[~answers.filled]
        right["background"] = self.heads.background(last[:, 0]).argmax(-1) == answers.background
        right["pairs"] = (self.heads.pairs(last[:, 0]) > 0)[answers.pairs > 0]
        return {name: 100.0 * hits.float().mean().item() for name, hits in right.items()}


def _pair_weights() -> Tensor:
    """``[P]``: the weight of every answer of ``Answers.pairs``."""
    return torch.cat([torch.full((SIZES[a] * SIZES[b],), weight) for (a, b), weight in PAIR_WEIGHTS.items()])


def _kinds(cells: Tensor) -> Tensor:
    kinds = cells[:, :, 0] * SIZES["colour"] + cells[:, :, 1]
    return torch.where(cells[:, :, 0] < SIZES["shape"], kinds, SIZES["shape"] * SIZES["colour"])


def _sum_over_cells(logits: Tensor, answers: Tensor) -> Tensor:
    """Cross-entropy summed over images; an image counts the mean over its four cells, however many are asked for."""
    return cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=_NOTHING, reduction="sum") / CELLS


def build_backbone(task: Task) -> History:
    """Teach a ``CLIPVisionModel``."""
    return teach(task, make_tower, image_processor())


def teach(task: Task, make: Callable[[], Any], processor: Any) -> History:
    """Teach a tower what is in the cells of a picture, and measure on val what can be read off it.

    Args:
        task: the stage; its folder gets tower, image processor, reading heads and accuracy.
        make: the tower with random weights.
        processor: its image processor.
    """
    with seeded(task.name, task.seed):
        objective = Attributes(make(), load_scenes("web", size=task.size))
    data = TrainingData(load_world("web", size=task.size), Collate({INPUTS: pixels}))
    history = task.fit(objective, data)
    save_taught(objective, task.folder, processor, task.size)
    return history


def save_taught(objective: Attributes, folder: Path, processor: Any, size: str) -> None:
    """Write the tower, its image processor, its reading heads and their accuracy on val into ``folder``."""
    objective.tower.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    save_file(objective.heads.state_dict(), folder / HEADS)
    write_json(folder / ACCURACY, held_out_accuracy(objective, size))


def load_heads(folder: Path) -> AttributeHeads:
    """The reading heads of a tower, as ``save_taught`` wrote them."""
    weights = load_file(folder / HEADS)
    heads = AttributeHeads(weights["place.weight"].shape[1])
    heads.load_state_dict(weights)
    return heads.eval()


def held_out_accuracy(objective: Attributes, size: str) -> dict[str, float]:
    """Percent right on val, see ``accuracy``."""
    scenes = load_scenes("val", size=size)
    examiner = Attributes(objective.tower, scenes)
    examiner.heads = objective.heads
    device = objective.heads.background.weight.device
    batch = Collate({INPUTS: pixels})(load_world("val", size=size).examples)
    return examiner.accuracy(batch.to(device))
