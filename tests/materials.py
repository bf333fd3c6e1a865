"""A tiny captioner, a tiny listener and a few pictures with captions, all on disk: what a user would have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from listeners.tiny_listeners import clip_parts
from pictures import CAPTIONS, images
from tellapart.listeners.clip import ClipListener
from tiny_models import tiny_ved


@dataclass(frozen=True)
class Materials:
    """Paths a recipe can name."""

    captioner: Path
    listener: Path
    data: Path
    photos: Path

    def recipe(self, folder: Path, method: str, **changes) -> Path:
        """A recipe of two steps, written to ``folder``."""
        recipe = {
            "method": method,
            "captioner": {"model_name_or_path": str(self.captioner)},
            "data": {"path": str(self.data), "split": "train"},
            "listener": {"path": str(self.listener)},
            "evaluation": {"split": "val", "max_new_tokens": 8},
            "output_dir": str(folder / method),
            "learning_rate": 1e-3,
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
        }
        recipe |= {"reward": {"clip_s": 1.0, "cider_d": 0.5}} if method != "xe" else {}
        recipe |= {"objective": {"max_new_tokens": 8}} if method != "xe" else {}
        recipe |= changes
        path = folder / f"{method}.yaml"
        path.write_text(json.dumps({key: value for key, value in recipe.items() if value is not None}))
        return path


def make_materials(root: Path) -> Materials:
    """Write them below ``root``."""
    tiny_ved(root / "captioner")
    model, image_processor, tokenizer = clip_parts()
    ClipListener.from_parts(model, image_processor, tokenizer).save(root / "listener")
    photos, entries = root / "photos", []
    photos.mkdir()
    for i, picture in enumerate(images(14)):
        picture.save(photos / f"{i:02}.png")
        sentences = [{"raw": CAPTIONS[(2 * i + k) % 64]} for k in (0, 9)]
        split = "train" if i < 8 else "val"
        entries.append({"filename": f"{i:02}.png", "split": split, "imgid": i, "sentences": sentences})
    (photos / "data.json").write_text(json.dumps({"images": entries, "dataset": "tiny"}))
    return Materials(root / "captioner", root / "listener", photos / "data.json", photos)


@pytest.fixture(scope="session")
def materials(tmp_path_factory) -> Materials:
    return make_materials(tmp_path_factory.mktemp("materials"))
