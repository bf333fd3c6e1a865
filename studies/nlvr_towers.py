"""The image towers of the study ``nlvr``: taught what is in the boxes of the training split.

Boxes of different images are put together, also mirrored, so few pictures are seen twice. Labels are the scenes, which the
pixels give exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from nlvr_pictures import BOX, BOXES, COLOURS, KINDS, SHAPES, SIDE, SIZES, Scene, Thing
from nlvr_sentences import is_towers
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.draws import base_seed, mix_seeds, seeded
from tellapart.files import write_json
from tellapart.types import Batch, ObjectiveModule, StepOutput
from tellapart.world.schedule import History, Schedule

if TYPE_CHECKING:
    from PIL import Image

PATCH = 12
GRID = SIDE // PATCH
MOST = 7
"""Counts above this are one class."""

GROUPS = (
    *((kind,) for kind in KINDS),
    *(tuple((colour, shape) for shape in SHAPES) for colour in COLOURS.values()),
    *(tuple((colour, shape) for colour in COLOURS.values()) for shape in SHAPES),
    KINDS,
)
"""What is counted: each kind, each colour, each shape, everything."""

NONE = len(KINDS)
"""Class of a patch without a thing."""

READ = {"kind": len(KINDS) + 1, "size": len(SIZES)}
"""Head of a patch -> number of its classes."""

NOT_ASKED = -100  # cross_entropy's ignore_index
RARE = 0.1
"""Weight of patches without a thing, which are ten times as many."""

ACCURACY, HEADS = "accuracy.json", "heads.safetensors"


def image_processor() -> Any:
    """The preprocessing of listener and captioner: 96 x 96, values from -1 to 1."""
    from transformers import CLIPImageProcessorPil

    side = {"height": SIDE, "width": SIDE}
    return CLIPImageProcessorPil(size=side, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def matcher_processor() -> Any:
    """The same for the judge's tower."""
    from transformers import BlipImageProcessorPil

    return BlipImageProcessorPil(size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def pixels(images: Sequence[Image.Image]) -> dict[str, Tensor]:
    """``{"pixel_values": [B, 3, 96, 96]}`` of canvases: what both processors give."""
    return {"pixel_values": _values(np.stack([np.asarray(image) for image in images]))}


def _values(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


def make_tower(*, width: int = 128, layers: int = 4) -> Any:
    """A ``CLIPVisionModel`` with random weights."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return CLIPVisionModel(CLIPVisionConfig(**_shape_of(width, layers), projection_dim=64))


def make_matcher_tower(*, width: int = 128, layers: int = 4) -> Any:
    """A ``Blip2VisionModel`` with random weights, whose weights fit BLIP's image tower."""
    from transformers import Blip2VisionConfig, Blip2VisionModel

    return Blip2VisionModel(Blip2VisionConfig(**_shape_of(width, layers), initializer_range=0.02))


def _shape_of(width: int, layers: int) -> dict[str, int]:
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    return sizes | {"num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH}


class Contents(ObjectiveModule):
    """Supervised reading of pictures put together from boxes.

    Each patch predicts the kind (colour and shape) and the size of the thing whose centre is in it, or that there is none. The
    CLS state predicts, for each box, the number of things of each kind, colour and shape, and which kinds touch a wall or the
    base. CLS can only collect what the patches hold one layer before the last, so these predict kinds there, too, as in
    :mod:`tellapart.world.backbone`.

    Args:
        tower: with ``last_hidden_state``.
        canvases: ``[M, 3, 48, 48, 3]`` uint8 boxes at the size of the canvas.
        scenes: M scenes.
    """

    def __init__(self, tower: Any, canvases: np.ndarray, scenes: Sequence[Scene]) -> None:
        super().__init__()
        width = tower.config.hidden_size
        self.tower = tower
        self.heads = nn.ModuleDict({name: nn.Linear(width, size) for name, size in READ.items()})
        self.early = nn.Linear(width, READ["kind"])
        self.count = nn.Linear(width, BOXES * len(GROUPS) * (MOST + 1))
        self.touch = nn.Linear(width, BOXES * len(KINDS) * 2)
        self.boxes = canvases.reshape(-1, *canvases.shape[2:])
        flat = [box for scene in scenes for box in scene]
        # Towers hold squares only, which are learnt at once: three pictures of four are of the other kind.
        self.likely = np.array([1.0 if is_towers(scene) else 3.0 for scene in scenes for _ in scene])
        things = [[box, tuple(_mirrored(thing) for thing in box)] for box in flat]
        self.local = torch.stack([torch.stack([_patches(box) for box in pair]) for pair in things])
        self.counts = torch.tensor([_counts(box) for box in flat])
        self.touching = torch.tensor([[_touching(box) for box in pair] for pair in things])

    def collect(self, batch: Batch, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Put pictures together: as many as the batch has names."""
        rng = np.random.default_rng(mix_seeds("boxes", base_seed(), step, *batch.ids[:2]))
        rows = rng.choice(len(self.boxes), size=(len(batch), BOXES), p=self.likely / self.likely.sum())
        return self.compose(rows, rng.integers(2, size=rows.shape))

    def compose(self, rows: np.ndarray, mirror: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pictures ``[B, 3, 96, 96]``, patches ``[B, 64, 2]``, counts ``[B, 3, 16]`` and touches ``[B, 3, 18]``.

        Args:
            rows: ``[B, 3]`` numbers of boxes.
            mirror: ``[B, 3]``, 1 where a box is mirrored.
        """
        half = SIDE // 2
        pictures = np.full((len(rows), SIDE, SIDE, 3), 128, dtype=np.uint8)
        local = torch.tensor([NONE, NOT_ASKED]).repeat(len(rows), GRID, GRID, 1)
        side = GRID // 2
        for place in range(BOXES):
            some = self.boxes[rows[:, place]]
            some = np.where(mirror[:, place, None, None, None] == 1, some[:, :, ::-1], some)
            top, left = place // 2, place % 2
            pictures[:, top * half : (top + 1) * half, left * half : (left + 1) * half] = some
            mine = self.local[torch.from_numpy(rows[:, place]), torch.from_numpy(mirror[:, place])]
            local[:, top * side : (top + 1) * side, left * side : (left + 1) * side] = mine
        numbers = torch.from_numpy(rows)
        return (
            _values(pictures),
            local.flatten(1, 2),
            self.counts[numbers],
            self.touching[numbers, torch.from_numpy(mirror)],
        )

    def losses(self, drawn: tuple[Tensor, Tensor, Tensor, Tensor]) -> Iterator[StepOutput]:
        """One piece: the loss summed over pictures."""
        pictures, local, counts, touching = drawn
        output = self.tower(pixel_values=pictures, output_hidden_states=True)
        states, before = output.last_hidden_state, output.hidden_states[-2]
        found = {name: head(states[:, 1:]).flatten(0, 1) for name, head in self.heads.items()}
        kinds, sizes = local.flatten(0, 1).T
        amount = self.count(states[:, 0]).view(len(pictures), BOXES, len(GROUPS), MOST + 1)
        touch = self.touch(states[:, 0]).view(len(pictures), BOXES, -1)
        number = len(pictures)
        weights = torch.tensor([1.0] * len(KINDS) + [RARE])
        terms = {
            "kind": cross_entropy(found["kind"], kinds, weights, ignore_index=NOT_ASKED),
            "early": cross_entropy(self.early(before[:, 1:]).flatten(0, 1), kinds, weights, ignore_index=NOT_ASKED),
            "size": 0.5 * cross_entropy(found["size"], sizes, ignore_index=NOT_ASKED),
            "count": 2.0 * cross_entropy(amount.flatten(0, 2), counts.flatten()),
            "touch": binary_cross_entropy_with_logits(touch, touching),
        }
        logs = {f"loss/{name}": term.detach()[None] for name, term in terms.items()}
        there = (kinds != NONE) & (kinds != NOT_ASKED)
        logs["accuracy/kind"] = (found["kind"].argmax(-1) == kinds)[there].float()
        logs["accuracy/count"] = (amount.argmax(-1) == counts).float().mean()[None]
        yield StepOutput(number * torch.stack(list(terms.values())).sum(), states.new_tensor(float(number)), logs)

    @torch.no_grad()
    def accuracy(self, canvases: np.ndarray, scenes: Sequence[Scene]) -> dict[str, float]:
        """Percent right on whole pictures that were never seen: counts by what is counted, and kinds at their place."""
        other = Contents(self.tower, canvases, scenes)
        rows = np.arange(len(scenes) * BOXES).reshape(-1, BOXES)
        pictures, local, counts, touching = other.compose(rows, np.zeros_like(rows))
        found = [self.tower(pixel_values=some).last_hidden_state for some in pictures.split(64)]
        states = torch.cat(found)
        amount = self.count(states[:, 0]).view(*counts.shape, -1).argmax(-1)
        right = (amount == counts).float() * 100
        kinds, sizes = local.flatten(0, 1).T
        read = {name: head(states[:, 1:]).flatten(0, 1).argmax(-1) for name, head in self.heads.items()}
        there, plain = kinds < NONE, ~torch.tensor([is_towers(scene) for scene in scenes])
        there &= (kinds >= 0) & plain[:, None].expand(-1, GRID * GRID).flatten()
        touch = (self.touch(states[:, 0]).view(touching.shape) > 0) == (touching > 0)
        some = (counts[:, :, : len(KINDS)] > 0) & plain[:, None, None]
        colour, shape = (
            (read["kind"] // len(SHAPES) == kinds // len(SHAPES)),
            (read["kind"] % len(SHAPES) == kinds % len(SHAPES)),
        )
        at_place = {
            "colour of a thing": colour & (read["kind"] < NONE),
            "shape of a thing": shape & (read["kind"] < NONE),
        }
        by_size = {
            f"shape of a thing of size {size}": at_place["shape of a thing"][there & (sizes == i)]
            for i, size in enumerate(SIZES)
        }
        return {
            **{name: 100 * right[there].float().mean().item() for name, right in at_place.items()},
            **{name: 100 * right.float().mean().item() for name, right in by_size.items()},
            "size of a thing": 100 * (read["size"] == sizes)[there].float().mean().item(),
            "no thing": 100 * (read["kind"] == NONE)[kinds == NONE].float().mean().item(),
            "count of a kind that is there": right[..., : len(KINDS)][some].mean().item(),
            "count of a kind": right[..., : len(KINDS)].mean().item(),
            "count of a colour": right[..., 9:12].mean().item(),
            "count of a shape": right[..., 12:15].mean().item(),
            "count of all": right[..., 15].mean().item(),
            "touching": 100 * touch.float().mean().item(),
        }


def _mirrored(thing: Thing) -> Thing:
    return Thing(thing.colour, thing.shape, thing.size, BOX - thing.size - thing.x, thing.y)


def _patches(box: Sequence[Thing]) -> Tensor:
    """``[4, 4, 2]`` kind and size of the thing in each patch; where two have their centre, neither is asked for."""
    side, scale = GRID // 2, SIDE / 2 / BOX / PATCH
    found = torch.tensor([NONE, NOT_ASKED]).repeat(side, side, 1)
    for thing in box:
        middle = thing.size / 2
        row, column = int((thing.y + middle) * scale), int((thing.x + middle) * scale)
        kind, size = KINDS.index((thing.colour, thing.shape)), SIZES.index(thing.size)
        free = found[row, column, 0] == NONE
        found[row, column] = torch.tensor([kind, size] if free else [NOT_ASKED, NOT_ASKED])
    return found


def _counts(box: Sequence[Thing]) -> list[int]:
    kinds = [(thing.colour, thing.shape) for thing in box]
    return [min(MOST, sum(kind in group for kind in kinds)) for group in GROUPS]


def _touching(box: Sequence[Thing]) -> list[float]:
    wall = {(thing.colour, thing.shape) for thing in box if thing.touches}
    base = {(thing.colour, thing.shape) for thing in box if "base" in thing.touches}
    return [float(kind in touched) for touched in (wall, base) for kind in KINDS]


def canvas_boxes(images: Sequence[Image.Image]) -> np.ndarray:
    """``[M, 3, 48, 48, 3]`` uint8: the boxes of canvases."""
    half = SIDE // 2
    whole = np.stack([np.asarray(image.convert("RGB")) for image in images])
    return np.stack([whole[:, :half, :half], whole[:, :half, half:], whole[:, half:, :half]], axis=1)


def teach(
    make: Callable[[], Any],
    processor: Any,
    folder: Path,
    schedule: Schedule,
    seed: int,
    train: tuple[np.ndarray, Sequence[Scene]],
    unseen: tuple[np.ndarray, Sequence[Scene]],
) -> History:
    """Train a tower into ``folder``, with what its heads read off unseen pictures.

    Args:
        make: the tower with random weights.
        processor: its image processor.
        folder: that is written.
        schedule: of the training.
        seed: of weights and pictures.
        train: boxes and scenes that pictures are put together from.
        unseen: of the held-out groups.
    """
    with seeded("nlvr", seed):
        objective = Contents(make(), *train)
    history = schedule.fit(objective, _numbers(len(train[1])), seed=seed)
    objective.tower.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    save_file(objective.heads.state_dict(), folder / HEADS)
    write_json(folder / ACCURACY, objective.accuracy(*unseen))
    return history


def _numbers(count: int) -> TrainingData:
    """A data set whose pictures are not opened: the objective puts its own together."""
    none = ArrayImage(np.zeros((1, 1, 3), dtype=np.uint8), "none")
    return TrainingData(CaptionDataset([Example(str(i), none) for i in range(count)], name="boxes"), Collate({}))
