"""Building the world into the cache, and reading it from there."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.errors import UsageError
from tellapart.files import cache_dir, first_folder, read_json
from tellapart.progress import Bar, bar
from tellapart.world import spec
from tellapart.world.captions import alt_text, references
from tellapart.world.render import SIDE, Renderer
from tellapart.world.scenes import Scene, SceneObject, draw_splits

_AT_ONCE = 250
"""Pictures drawn together: few enough to stay in the processor's cache's reach, many enough to be quick."""


def world_folder(size: str = "full") -> Path:
    """The folder of the built world, which is built now if it is not there.

    Two processes that build at once do not disturb each other: whoever is first is kept.

    Raises:
        UsageError: there is no such size.
    """
    spec.require_size(size)
    folder = cache_dir() / "world" / f"{spec.version()}-{size}"
    if folder.is_dir():
        return folder
    with first_folder(folder) as temporary:
        build(temporary, spec.SPLIT_SIZES[size])
    return folder


def build(folder: Path, sizes: dict[str, int], seed: int = spec.SEED) -> None:
    """Write every split into ``folder``: ``<split>.npy`` with the pictures, ``<split>.json`` with scenes and texts.

    Args:
        folder: an existing folder.
        sizes: split -> number of images.
        seed: what everything is drawn from.
    """
    with bar("building the world", sum(sizes.values())) as running:
        for number, (split, scenes) in enumerate(draw_splits(sizes, seed).items()):
            _write_images(folder / f"{split}.npy", scenes, (seed, number), running)
            (folder / f"{split}.json").write_text(json.dumps(_records(scenes, split, seed)), encoding="utf-8")


def _write_images(path: Path, scenes: list[Scene], seed: tuple[int, int], running: Bar) -> None:
    about = {"descr": np.dtype(np.uint8).str, "fortran_order": False, "shape": (len(scenes), SIDE, SIDE, 3)}
    render = Renderer(seed)
    with path.open("wb") as file:  # not mapped: a full disk would end the process without a word
        np.lib.format.write_array_header_1_0(file, about)
        for start in range(0, len(scenes), _AT_ONCE):
            chunk = scenes[start : start + _AT_ONCE]
            file.write(render(chunk).tobytes())
            running.advance(len(chunk))


def _records(scenes: list[Scene], split: str, seed: int) -> dict[str, Any]:
    people, web = random.Random(f"{seed}-references-{split}"), random.Random(f"{seed}-alt-texts-{split}")
    return {
        "scenes": [asdict(scene) for scene in scenes],
        "references": [references(scene, people) for scene in scenes],
        "alt_texts": [[alt_text(scene, web) for _ in range(spec.ALT_TEXTS_PER_IMAGE)] for scene in scenes],
    }


def read_images(split: str, size: str) -> np.ndarray:
    """The pictures of a split, ``[N, 64, 64, 3]`` uint8, mapped from disk."""
    _check_split(split)
    with damage_reported(path := world_folder(size) / f"{split}.npy"):
        return np.asarray(np.load(path, mmap_mode="r"))


def read_records(split: str, size: str) -> dict[str, dict[str, Any]]:
    """Scenes, references and alternative texts of a split: kind -> image id -> value."""
    _check_split(split)
    with damage_reported(path := world_folder(size) / f"{split}.json"):
        stored = read_json(path)
    ids = [f"{split}-{i:06d}" for i in range(len(stored["scenes"]))]
    return {kind: dict(zip(ids, values, strict=True)) for kind, values in stored.items()}


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Turn a failure to read a file of the built world into a sentence."""
    try:
        yield
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise UsageError(f"{path} is missing or damaged: delete {path.parent}, and it is built again.") from error


def read_scene(stored: dict[str, Any]) -> Scene:
    """A scene from its record."""
    return Scene(tuple(SceneObject(**thing) for thing in stored["objects"]), stored["background"])


def _check_split(split: str) -> None:
    if split not in spec.SPLIT_SIZES["full"]:
        names = ", ".join(spec.SPLIT_SIZES["full"])
        raise UsageError(f"The world has no split {split!r}: choose one of {names}.")
