"""A recipe of two steps for every method that is listed, on tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from listeners.tiny_listeners import clip_parts
from materials import Materials
from pictures import CAPTIONS
from tellapart.listeners.clip import ClipListener
from tellapart.objectives import METHODS
from tellapart.rewards.grammar import make_head
from tiny_models import word_tokenizer

Parts = dict[str, str]
"""Part of a recipe -> the file or folder of a tiny one."""


def make_parts(root: Path, materials: Materials) -> Parts:
    """Write what methods need besides a captioner, a listener and data."""
    model, image_processor, tokenizer = clip_parts(words=word_tokenizer(CAPTIONS, 64), eos=3)
    ClipListener.from_parts(model, image_processor, tokenizer, prefix="").save(root / "own")
    listener = ClipListener.from_pretrained(materials.listener)
    listener.save(root / "grammar")
    make_head(listener).save(root / "grammar")
    pairs = [{"image": f"{i}.png", "chosen": CAPTIONS[i], "rejected": CAPTIONS[i + 9]} for i in range(8)]
    (root / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    folders = {name: str(root / name) for name in ("own", "grammar")}
    return {
        "own_listener": folders["own"],
        "grammar": folders["grammar"],
        "photos": str(materials.photos),
        "preferences": str(root / "pairs.jsonl"),
    }


SECTIONS: dict[str, Callable[[Materials, Parts], dict[str, Any]]] = {
    "listener": lambda materials, parts: {"listener": {"path": str(materials.listener)}},
    "own_listener": lambda materials, parts: {"own_listener": {"path": parts["own_listener"]}},
    "grammar": lambda materials, parts: {"grammar": {"path": parts["grammar"]}},
    "unlabelled": lambda materials, parts: {"unlabelled": {"path": parts["photos"], "ranks": [2, 5]}},
    "preferences": lambda materials, parts: {"preferences": {"path": parts["preferences"]}},
    "discriminator": lambda materials, parts: {
        "discriminator": {"kind": "mlp", "pretraining_steps": 1, "batch_size": 4, "max_new_tokens": 4}
    },
}
"""What a part of a recipe needs to be given; the others have defaults."""


def method_recipe(method: str, materials: Materials, parts: Parts, path: str, **changes: Any) -> dict[str, Any]:
    """The recipe of a method on the data at ``path``."""
    needs = METHODS[method].needs
    written: dict[str, Any] = {"method": method, "captioner": {"model_name_or_path": str(materials.captioner)}}
    written |= {"data": {"path": path, **changes.pop("data", {})}, "evaluation": {"split": None}}
    written |= {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "logging_steps": 1}
    for need in needs:
        written |= SECTIONS.get(need, lambda *_: {})(materials, parts)
    if "reward" in needs:
        written |= {"reward": {"clip_s": 1.0}} | SECTIONS["listener"](materials, parts)
    written["objective"] = {} if method == "xe" or "preferences" in needs else {"max_new_tokens": 6}
    return written | changes
