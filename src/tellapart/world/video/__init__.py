"""The moving world: clips of eight frames whose truth is known, with the captions of annotators.

One to three objects move, turn another colour, appear, vanish or stay; captions say what happens and in which order. Truth,
motion, order and exact retrieval can be measured (``tellapart.world.video.measures``). Nothing is downloaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.world.video.scenes import Event, MovingScene
from tellapart.world.video.spec import FRAMES, SPLIT_SIZES

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset

VIDEO_SPLITS = tuple(SPLIT_SIZES["full"])
"""Captioner training, training of tower and listener, selection, report."""

__all__ = ["FRAMES", "VIDEO_SPLITS", "Event", "MovingScene", "load_moving_scenes", "load_video_world"]


def load_video_world(split: str, *, size: str = "full") -> CaptionDataset:
    """The clips of a split with five references each; built on first use, drawn when they are read.

    Clips 4i to 4i + 3 are a cluster: a scene and three of its mutants.

    Args:
        split: train, web, val or test.
        size: full (15500 clips), or small (680) for a quick look.

    Raises:
        UsageError: there is no such split or size.

    Example:
        >>> example = load_video_world("val", size="small")[0]
        >>> len(example.image.frames(8)), len(example.references)
        (8, 5)
    """
    from tellapart.data.dataset import CaptionDataset, Example
    from tellapart.world.video.build import clip_of, read_records

    scenes, references = read_records(split, size)
    examples = [
        Example(name, clip_of(split, number, moving), tuple(texts))
        for number, ((name, moving), texts) in enumerate(zip(scenes.items(), references, strict=True))
    ]
    return CaptionDataset(examples, name=f"moving world {split}")


def load_moving_scenes(split: str, *, size: str = "full") -> dict[str, MovingScene]:
    """Clip id -> what is in it and what happens.

    Raises:
        UsageError: there is no such split or size.
    """
    from tellapart.world.video.build import read_records

    return read_records(split, size)[0]
