"""Which images the page shows, and what it says of each model's caption."""

from __future__ import annotations

import base64
import io
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.evaluation.columns import describe
from tellapart.evaluation.report.runs import RunView

if TYPE_CHECKING:
    from PIL import Image

LONGEST_SIDE = 384
"""Pixels an image is shrunk to at most."""

SMALL_SIDE = 128
"""Up to this size an image is kept as it is, pixel by pixel."""

FLAGS = {
    "grammatical": ("grammatical", "not grammatical"),
    "truthful": ("true", "not true"),
}
"""Per-image column -> what to say where it holds and where it does not."""


@dataclass(frozen=True)
class Flag:
    """A short verdict on a caption; ``tone`` is good, bad or plain."""

    text: str
    tone: str


@dataclass(frozen=True)
class Line:
    """A model's caption of an image."""

    row: int
    name: str
    caption: str
    flags: list[Flag]


@dataclass(frozen=True)
class Card:
    """An image with its references and every model's caption."""

    id: str
    source: str
    pixelated: bool
    alt: str
    references: list[str]
    lines: list[Line]


@dataclass(frozen=True)
class Group:
    """Images that were chosen for one reason."""

    title: str
    cards: list[Card]


def gallery(runs: Sequence[RunView], dataset: CaptionDataset, *, images: int, seed: int) -> list[Group]:
    """About a third of ``images`` where the later runs gain most over the first, a third where they lose most, the rest
    drawn at random, so that the page is not a choice of successes.

    Raises:
        UsageError: the runs caption images that the data set lacks.
    """
    ids = list(runs[0].result.captions)
    missing = [image_id for image_id in ids if image_id not in dataset.position]
    if missing:
        raise UsageError(
            f"{runs[0].name} captions {len(missing)} images that {dataset.name} lacks, first {missing[0]!r}: "
            "name the data and the split the runs were evaluated on."
        )
    chosen = choose(runs, ids, images=images, seed=seed)
    return [Group(title, [_card(runs, dataset, i) for i in found]) for title, found in chosen.items() if found]


def choose(runs: Sequence[RunView], ids: Sequence[str], *, images: int, seed: int) -> dict[str, list[str]]:
    """Reason -> image ids; no image occurs twice."""
    gains = _gains(runs, ids)
    third = images // 3
    by_gain = sorted((i for i in ids if gains[i]), key=lambda i: (-gains[i], i))
    won = [i for i in by_gain if gains[i] > 0][:third]
    lost = [i for i in reversed(by_gain) if gains[i] < 0][:third]
    taken = {*won, *lost}
    rest = [i for i in ids if i not in taken]
    drawn = random.Random(seed).sample(rest, min(len(rest), images - len(taken)))
    first, measure = runs[0].name, describe(_measure(runs) or "").label
    return {
        f"Largest gains over {first}, by {measure}": won,
        f"Largest losses against {first}, by {measure}": lost,
        "Drawn at random": drawn,
    }


def _measure(runs: Sequence[RunView]) -> str | None:
    """The per-image column that tells gains: the last retriever's reciprocal rank, else CIDEr."""
    names = [f"{name}_MRR" for name in reversed(runs[0].result.protocol.listeners)]
    return next((key for key in [*names, "CIDEr"] if all(key in run.result.per_image for run in runs)), None)


def _gains(runs: Sequence[RunView], ids: Sequence[str]) -> dict[str, float]:
    """Image id -> mean over later runs of the gain over the first; reciprocal ranks are compared as log ranks."""
    key = _measure(runs)
    if key is None or len(runs) < 2:
        return dict.fromkeys(ids, 0.0)
    values = [_by_id(run, key) for run in runs]

    def level(value: float | None) -> float:
        return 0.0 if value is None else math.log(max(value, 1e-9)) if key.endswith("_MRR") else value

    return {i: sum(level(later[i]) - level(values[0][i]) for later in values[1:]) / (len(runs) - 1) for i in ids}


def _by_id(run: RunView, key: str) -> dict[str, float | None]:
    return dict(zip(run.result.captions, run.result.per_image[key], strict=True))


def _card(runs: Sequence[RunView], dataset: CaptionDataset, image_id: str) -> Card:
    example = dataset[dataset.position[image_id]]
    source, pixelated = data_uri(example.image.open())
    references = [text.strip() for text in example.references]
    alt = f"Image {image_id}" + (f": {references[0]}" if references else "")
    lines = [Line(row, run.name, run.result.captions[image_id], _flags(run, image_id)) for row, run in enumerate(runs)]
    return Card(image_id, source, pixelated, alt, references, lines)


def _flags(run: RunView, image_id: str) -> list[Flag]:
    row = list(run.result.captions).index(image_id)
    columns, flags = run.result.per_image, []
    for listener in run.result.protocol.listeners:
        rank = columns.get(f"{listener}_rank", [None] * (row + 1))[row]
        if rank is not None:
            flags.append(Flag(f"{listener}: rank {int(rank)}", "good" if rank == 1 else "plain"))
    for key, (holds, fails) in FLAGS.items():
        value = columns.get(key, [None] * (row + 1))[row]
        if value is not None:
            flags.append(Flag(holds if value else fails, "good" if value else "bad"))
    return flags


def data_uri(image: Image.Image) -> tuple[str, bool]:
    """``(data: address, whether it is shown pixel by pixel)``; small images as PNG, photos as JPEG."""
    small = max(image.size) <= SMALL_SIDE
    picture = image.copy()
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    if small:
        picture.save(buffer, "PNG", optimize=True)
    else:
        picture.save(buffer, "JPEG", quality=82, optimize=True)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}", small
