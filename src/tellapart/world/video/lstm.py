"""The moving world's recurrent captioner before post-training, and the pooled features that it reads."""

from __future__ import annotations

from pathlib import Path

from tellapart.data.features.store import FeatureStore
from tellapart.world.lstm import stored_features, teach
from tellapart.world.schedule import History, Task
from tellapart.world.video import load_video_world
from tellapart.world.video.vocabulary import MAX_LENGTH

CAPTIONS_PER_CLIP = 3


def video_features(backbone: Path, size: str) -> FeatureStore:
    """The mean over frames and places of ``world/video-backbone`` for every clip, computed on first use and kept in the cache.

    Chen & Jin (CVPR 2020, section 5.1) pool a ResNet's features of TGIF's frames in the same way. Their ResNet reads one frame
    at a time, so the mean has no order; the tower of this world reads all frames at once, so its mean tells what happens.

    Args:
        backbone: folder of ``world/video-backbone``.
        size: of the world.
    """
    return stored_features("world/video-backbone", backbone, size, "mean", load_video_world)


def build_lstm(task: Task) -> History:
    """Teach an LSTM over pooled features (Chen & Jin, CVPR 2020, section 5) on the training split."""
    features = video_features(task.needs["world/video-backbone"], task.size)
    dataset = load_video_world("train", size=task.size)
    return teach(task, "fc_lstm", dataset, features, captions_per_image=CAPTIONS_PER_CLIP, max_length=MAX_LENGTH)
