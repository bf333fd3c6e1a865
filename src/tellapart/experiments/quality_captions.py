"""Captions of many kinds of quality for the world's test images, and how good each one exactly is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.draws import mix_seeds
from tellapart.pretraining.start_captions import start_captions
from tellapart.types import Decoding
from tellapart.world import alt_texts, load_scenes
from tellapart.world.backbone import pixels
from tellapart.world.measures import world_measures
from tellapart.world.negatives import replace_attribute, shuffle_words, swap_attributes
from tellapart.world.schedule import one_thread
from tellapart.world.stages import resolve
from tellapart.world.vocabulary import MAX_NEW_TOKENS

TEMPERATURES = (0.7, 1.0, 1.5)
BEST = "longest reference"
"""The kind that all spoilt ones are made from."""

SPOILT = ("attributes swapped", "attribute replaced", "truncated", "words shuffled", "look-alike's", "other image's")
"""Kinds that are worse than :data:`BEST`, or no better."""

CLUSTER = 4  # images 4i to 4i + 3 of a split are mutants of one scene


@dataclass(frozen=True)
class Judged:
    """One caption of each kind of every image.

    Args:
        kinds: K names.
        texts: kind -> N captions, in the images' order.
        quality: kind -> ``[N]`` from 0 to 1: 0 unless the caption parses and all of it is true, else the share of the
            scene's attributes that it tells.
        ids: N images.
        drawn: the kinds that ``world/xe`` wrote.
    """

    kinds: tuple[str, ...]
    texts: dict[str, list[str]]
    quality: dict[str, np.ndarray]
    ids: list[str]
    drawn: tuple[str, ...] = ()

    def flat(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """``[N * K]`` of kind -> ``[N]`` values: an image's captions one after another."""
        return np.stack([values[kind] for kind in self.kinds], axis=1).reshape(-1)

    @property
    def images(self) -> np.ndarray:
        """``[N * K]`` row of the image of each caption."""
        return np.repeat(np.arange(len(self.ids)), len(self.kinds))


def judged_captions(dataset: CaptionDataset, *, split: str, size: str) -> Judged:
    """The captions of a split and their quality.

    Args:
        dataset: the split.
        split: its name.
        size: of the world.
    """
    drawn = _drawn(dataset, size)
    texts = {**_written(dataset, split, size), **drawn}
    scenes, ids = load_scenes(split, size=size), dataset.ids
    quality = {}
    for kind, captions in texts.items():
        measured = world_measures(dict(zip(ids, captions, strict=True)), scenes).per_image
        quality[kind] = np.array(measured["truthful"]) * np.array(measured["detail"]) / 1e4
    return Judged(tuple(texts), texts, quality, ids, tuple(drawn))


def _written(dataset: CaptionDataset, split: str, size: str) -> dict[str, list[str]]:
    """What people wrote, and what became of it."""
    references = dataset.references
    best = [max(texts, key=len) for texts in references.values()]
    rngs = [np.random.default_rng(mix_seeds("quality", name)) for name in references]
    pairs = list(zip(best, rngs, strict=True))
    shift = len(best) // 2 // CLUSTER * CLUSTER
    return {
        "reference": [texts[0] for texts in references.values()],
        BEST: best,
        "attributes swapped": [
            swap_attributes(text, rng) or replace_attribute(text, rng) or text for text, rng in pairs
        ],
        "attribute replaced": [replace_attribute(text, rng) or text for text, rng in pairs],
        "truncated": [" ".join(text.split()[: -(-len(text.split()) // 2)]) for text in best],
        "words shuffled": [shuffle_words(text, rng) for text, rng in pairs],
        "look-alike's": [best[_sibling(row, len(best))] for row in range(len(best))],
        "other image's": [best[(row + shift) % len(best)] for row in range(len(best))],
        "keywords": [texts[0] for texts in alt_texts(split, size=size).values()],
    }


def _sibling(row: int, images: int) -> int:
    """The next image of the same cluster."""
    first = row // CLUSTER * CLUSTER
    return first + (row - first + 1) % min(CLUSTER, images - first)


def _drawn(dataset: CaptionDataset, size: str) -> dict[str, list[str]]:
    """What ``world/xe`` writes; the cache keeps it."""
    captioner = HuggingFaceCaptioner.from_pretrained(resolve("world/xe", size=size))
    decoding = partial(Decoding, max_new_tokens=MAX_NEW_TOKENS)
    ways = {"xe, greedy": decoding()}
    ways |= {f"xe, sampled at {value}": decoding(do_sample=True, temperature=value) for value in TEMPERATURES}
    texts = {}
    with one_thread():
        for kind, way in ways.items():
            found = start_captions(captioner, dataset, dataset.ids, Collate({captioner.name: pixels}), way)
            texts[kind] = [found.texts[image_id] for image_id in dataset.ids]
    return texts
