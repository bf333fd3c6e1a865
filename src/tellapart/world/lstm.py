"""The world's recurrent captioners before post-training, and the image features that they read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tellapart.captioners.fresh import fresh_captioner
from tellapart.captioners.vision import VisionFeatures
from tellapart.captioning.features import write_features
from tellapart.captioning.records import Item
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.features.base import FeatureInputs
from tellapart.data.features.store import About, FeatureStore, Pool
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.files import first_folder
from tellapart.objectives.xe import XE
from tellapart.world import load_world
from tellapart.world.schedule import History, Task, one_thread
from tellapart.world.stages import features_root
from tellapart.world.vocabulary import MAX_LENGTH

SPLITS = ("train", "val", "test")
HIDDEN_SIZE = 256
CAPTIONS_PER_IMAGE = 2

POOLS: dict[str, Pool] = {"fc_lstm": "mean", "att2in2": "grid", "updown": "grid"}
"""Kind of captioner -> the features that it reads."""

KINDS = {"world/lstm": "fc_lstm", "world/att2in2": "att2in2", "world/updown": "updown"}
"""Stage -> kind of captioner."""


def features_folder(backbone: Path, size: str, pool: Pool = "mean") -> Path:
    """Where features of a stage are kept."""
    return features_root() / f"{size}-{backbone.name}{'' if pool == 'mean' else f'-{pool}'}"


def world_features(backbone: Path, size: str, pool: Pool = "mean") -> FeatureStore:
    """The backbone's features of every image, computed on first use and kept in the cache.

    The mean over places is what the LSTM of Chen & Jin (2020) reads of a ResNet. The grid, one vector for each of the four
    cells of a picture, replaces the regions that captioners with attention read.

    Args:
        backbone: folder of ``world/backbone``.
        size: of the world.
        pool: ``mean`` or ``grid``.
    """
    return stored_features("world/backbone", backbone, size, pool, load_world)


def stored_features(
    name: str, backbone: Path, size: str, pool: Pool, load: Callable[..., CaptionDataset]
) -> FeatureStore:
    """Features of the splits that recurrent captioners read, computed on first use.

    Args:
        name: of the stage.
        backbone: its folder.
        size: of the world.
        pool: what is kept.
        load: split and ``size`` -> its images.
    """
    folder = features_folder(backbone, size, pool)
    if not folder.is_dir():
        vision = VisionFeatures.from_pretrained(backbone, pool=pool)
        width: int = vision.model.config.hidden_size  # type: ignore[union-attr, assignment]  # of a transformers model
        about = About(name, vision.fingerprint(), pool, width, "float32", vision.num_frames)
        items = [Item(e.id, e.image, e.id) for split in SPLITS for e in load(split, size=size)]
        with first_folder(folder) as temporary, one_thread():
            write_features(items, vision, temporary, about)
    return FeatureStore(folder)


def feature_collate(name: str, features: FeatureStore) -> Collate:
    """What makes batches for the captioner called ``name``."""
    return Collate({}, features={name: FeatureInputs(features)})


def collate_pictures(name: str, backbone: Path, pool: Pool) -> Collate:
    """The same for pictures whose features are not stored: they are computed for each batch.

    Args:
        name: of the captioner.
        backbone: folder of ``world/backbone``.
        pool: ``mean`` or ``grid``.
    """
    vision = VisionFeatures.from_pretrained(backbone, pool=pool)

    def read(images: list[Any]) -> dict[str, Tensor]:
        features = vision(vision.process(images))
        mask = {"mask": torch.ones(features.shape[:2], dtype=torch.bool)} if features.ndim == 3 else {}
        return {"features": features, **mask}

    return Collate({name: read})


def build_lstm(task: Task) -> History:
    """Teach a recurrent captioner on the training split: an LSTM over mean-pooled features (Chen & Jin, CVPR 2020, section 5), or
    one with attention to the grid of features."""
    dataset, kind = load_world("train", size=task.size), KINDS[task.name]
    features = world_features(task.needs["world/backbone"], task.size, POOLS[kind])
    return teach(task, kind, dataset, features, captions_per_image=CAPTIONS_PER_IMAGE, max_length=MAX_LENGTH)


def teach(
    task: Task,
    kind: str,
    dataset: CaptionDataset,
    features: FeatureStore,
    *,
    captions_per_image: int,
    max_length: int,
) -> History:
    """Teach a new recurrent captioner.

    Args:
        task: the stage.
        kind: of captioner.
        dataset: what it learns from.
        features: of its images.
        captions_per_image: references read per image and step.
        max_length: longest caption in tokens.
    """
    with seeded(task.name, task.seed):
        captioner = fresh_captioner(
            kind,
            (text for example in dataset for text in example.references),
            feature_size=features.width,
            hidden_size=HIDDEN_SIZE,
            min_count=1,
            max_caption_tokens=max_length,
        )
    data = TrainingData(dataset, feature_collate(captioner.name, features))
    history = task.fit(XE(captioner, captions_per_image=captions_per_image), data)
    captioner.eval().save(task.folder)
    return history
