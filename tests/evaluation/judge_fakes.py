"""A small study on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ArrayImage
from tellapart.evaluation.judge.study import WHICH_IMAGE, Study, choose_images, make_items, random_others, write_study

RUNS = ("secret-alpha", "secret-beta")


def pictures(count: int, side: int = 24) -> CaptionDataset:
    shades = np.random.default_rng(0).integers(0, 255, size=(count, side, side, 3), dtype=np.uint8)
    return CaptionDataset([Example(str(i), ArrayImage(shade)) for i, shade in enumerate(shades)], name="toy")


def captions(count: int, *, equal: tuple[int, ...] = ()) -> tuple[dict[str, str], dict[str, str]]:
    """Both runs' captions; those of the images ``equal`` are alike."""
    first = {str(i): f"picture {i} in plain words" for i in range(count)}
    second = {name: text if int(name) in equal else f"an image, number {name}" for name, text in first.items()}
    return first, second


def toy_study(folder: Path, *, images: int = 30, count: int = 6, equal: tuple[int, ...] = (), seed: int = 3) -> Study:
    dataset, (first, second) = pictures(images), captions(images, equal=equal)
    chosen = choose_images(first, second, count=count, seed=seed)
    others = random_others(dataset, chosen[WHICH_IMAGE], seed=seed)
    items = make_items(chosen, first, second, others, seed=seed)
    return write_study(folder, dataset, items, runs=RUNS, seed=seed, asked={"x": 1}, about={"data": "Toy images."})
