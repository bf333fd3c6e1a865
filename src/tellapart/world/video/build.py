"""Building the moving world into the cache, and reading it from there. Clips are drawn when they are read."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError
from tellapart.files import cache_dir, first_folder, read_json
from tellapart.world.build import damage_reported, read_scene
from tellapart.world.scenes import draw_clusters
from tellapart.world.video import spec
from tellapart.world.video.captions import references
from tellapart.world.video.render import WorldClip
from tellapart.world.video.scenes import Event, MovingScene, draw_moving_scene, mutate


def world_folder(size: str = "full") -> Path:
    """The folder of the moving world's scenes and texts, which is built now if it is not there.

    Raises:
        UsageError: there is no such size.
    """
    spec.require_size(size)
    folder = cache_dir() / "world" / f"video-{spec.version()}-{size}"
    if not folder.is_dir():
        with first_folder(folder) as temporary:
            build(temporary, spec.SPLIT_SIZES[size])
    return folder


def build(folder: Path, sizes: dict[str, int], seed: int = spec.SEED) -> None:
    """Write every split into ``folder``: ``<split>.json`` with scenes and references.

    Args:
        folder: an existing folder.
        sizes: split -> number of clips.
        seed: what everything is drawn from.
    """
    for split, scenes in draw_clusters(sizes, f"{seed}-video", draw_moving_scene, mutate).items():
        people = random.Random(f"{seed}-video-references-{split}")
        records = {
            "scenes": [asdict(moving) for moving in scenes],
            "references": [references(moving, people) for moving in scenes],
        }
        (folder / f"{split}.json").write_text(json.dumps(records), encoding="utf-8")


def read_records(split: str, size: str) -> tuple[dict[str, MovingScene], list[list[str]]]:
    """Clip id -> moving scene, and the references of each.

    Raises:
        UsageError: there is no such split or size, or its file is damaged.
    """
    if split not in spec.SPLIT_SIZES["full"]:
        names = ", ".join(spec.SPLIT_SIZES["full"])
        raise UsageError(f"The moving world has no split {split!r}: choose one of {names}.")
    with damage_reported(path := world_folder(size) / f"{split}.json"):
        stored = read_json(path)
        scenes = {f"{split}-{i:06d}": read_moving(one) for i, one in enumerate(stored["scenes"])}
        return scenes, stored["references"]


def read_moving(stored: dict[str, Any]) -> MovingScene:
    """A moving scene from its record."""
    return MovingScene(read_scene(stored["scene"]), tuple(Event(**event) for event in stored["events"]))


def clip_of(split: str, number: int, moving: MovingScene, seed: int = spec.SEED) -> WorldClip:
    """The clip of a scene, by its place in a split."""
    place = list(spec.SPLIT_SIZES["full"]).index(split)
    return WorldClip(moving, (seed, place, number), f"{split}-{number:06d}")
