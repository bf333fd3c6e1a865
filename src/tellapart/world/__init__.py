"""The built-in world: procedural pictures whose truth is known, with the captions of annotators.

Pictures of one to three objects are drawn from random scenes, references are written from a grammar at several degrees of
detail. So grammaticality, truth, hallucination, detail and exact retrieval can be measured
(``tellapart.world.measures``). Nothing is downloaded: the world is built on first use, into the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.world.scenes import Scene, SceneObject
from tellapart.world.spec import SPLIT_SIZES
from tellapart.world.vocabulary import WORDS, build_tokenizer

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset

WORLD_SPLITS = tuple(SPLIT_SIZES["full"])
"""Captioner training, listener training, selection, report."""

__all__ = [
    "WORDS",
    "WORLD_SPLITS",
    "Scene",
    "SceneObject",
    "alt_texts",
    "build_tokenizer",
    "load_scenes",
    "load_world",
]


def load_world(split: str, *, size: str = "full") -> CaptionDataset:
    """The pictures of a split with five references each; built on first use.

    Images 4i to 4i + 3 are a cluster: a scene and three of its mutants.

    Args:
        split: train, web, val or test.
        size: full (20000 images), or small (1400) for a quick look.

    Raises:
        UsageError: there is no such split or size.
    """
    from tellapart.data.dataset import CaptionDataset, Example
    from tellapart.data.images import ArrayImage
    from tellapart.world.build import read_images, read_records

    references = read_records(split, size)["references"]
    images = read_images(split, size)
    examples = [
        Example(name, ArrayImage(image), tuple(texts))
        for (name, texts), image in zip(references.items(), images, strict=True)
    ]
    return CaptionDataset(examples, name=f"world {split}")


def load_scenes(split: str, *, size: str = "full") -> dict[str, Scene]:
    """Image id -> what is in the picture.

    Raises:
        UsageError: there is no such split or size.
    """
    from tellapart.world.build import read_records, read_scene

    return {name: read_scene(stored) for name, stored in read_records(split, size)["scenes"].items()}


def alt_texts(split: str, *, size: str = "full") -> dict[str, list[str]]:
    """Image id -> three shuffled lists of keywords, denser than captions and without grammar, for training a listener.

    Raises:
        UsageError: there is no such split or size.
    """
    from tellapart.world.build import read_records

    return dict(read_records(split, size)["alt_texts"])
