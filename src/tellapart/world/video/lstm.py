"""The moving world's recurrent captioner before post-training, and the pooled features that it reads."""

from __future__ import annotations

from pathlib import Path

from tellapart.captioners.fresh import fresh_captioner
from tellapart.captioners.vision import VisionFeatures
from tellapart.captioning.features import write_features
from tellapart.captioning.records import Item
from tellapart.data.features.store import About, FeatureStore
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.files import cache_dir, first_folder
from tellapart.objectives.xe import XE
from tellapart.world.lstm import HIDDEN_SIZE, feature_collate
from tellapart.world.schedule import History, Task, one_thread
from tellapart.world.video import load_video_world
from tellapart.world.video.vocabulary import MAX_LENGTH

SPLITS = ("train", "val", "test")
CAPTIONS_PER_CLIP = 3


def features_folder(backbone: Path, size: str) -> Path:
    """Where ``video_features`` keeps them."""
    return cache_dir() / "world" / "features" / f"{size}-{backbone.name}"


def video_features(backbone: Path, size: str) -> FeatureStore:
    """The mean over frames and places of ``world/video-backbone`` for every clip, computed on first use and kept in the cache.

    Chen & Jin (CVPR 2020, section 5.1) pool a ResNet's features of TGIF's frames in the same way. Their ResNet reads one frame
    at a time, so the mean has no order; the tower of this world reads all frames at once, so its mean tells what happens.

    Args:
        backbone: folder of ``world/video-backbone``.
        size: of the world.
    """
    folder = features_folder(backbone, size)
    if not folder.is_dir():
        vision = VisionFeatures.from_pretrained(backbone)
        width: int = vision.model.config.hidden_size  # type: ignore[union-attr, assignment]  # of a transformers model
        about = About("world/video-backbone", vision.fingerprint(), "mean", width, "float32", vision.num_frames)
        items = [Item(e.id, e.image, e.id) for split in SPLITS for e in load_video_world(split, size=size)]
        with first_folder(folder) as temporary, one_thread():
            write_features(items, vision, temporary, about)
    return FeatureStore(folder)


def build_lstm(task: Task) -> History:
    """Teach an LSTM over pooled features (Chen & Jin, CVPR 2020, section 5) on the training split."""
    dataset = load_video_world("train", size=task.size)
    features = video_features(task.needs["world/video-backbone"], task.size)
    with seeded(task.name, task.seed):
        captioner = fresh_captioner(
            "fc_lstm",
            (text for example in dataset for text in example.references),
            feature_size=features.width,
            hidden_size=HIDDEN_SIZE,
            min_count=1,
            max_caption_tokens=MAX_LENGTH,
        )
    data = TrainingData(dataset, feature_collate(captioner.name, features))
    history = task.fit(XE(captioner, captions_per_image=CAPTIONS_PER_CLIP), data)
    captioner.eval().save(task.folder)
    return history
