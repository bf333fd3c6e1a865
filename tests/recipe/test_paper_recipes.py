"""The recipes that docs/explanation/papers.md names for the rows of the papers build, with tiny models of the same families."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_recipes import load_listener_recipe, load_recipe
from pictures import CAPTIONS
from tellapart.data.features.open import open_features
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.vse import Vse
from tellapart.objectives import METHODS
from tellapart.recipe.fingerprint import flat
from tellapart.recipe.models import load_data
from tellapart.recipe.soft_listeners import stored_vectors
from tellapart.rewards.grammar import make_head
from tiny.blip2 import tiny_blip2
from tiny.git import tiny_git
from tiny.language_models import saved
from tiny.matchers import tiny_blip2_itm
from tiny.qwen2_5_vl import tiny_qwen2_5_vl
from tiny_lstm import WIDTH, tiny_lstm
from tiny_models import tiny_blip, tiny_ved

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "papers.md").read_text(encoding="utf-8")
HEADING = "| row | recipe for a real model |"
ON_COCO = sorted(path for path in (ROOT / "recipes").glob("coco_*.yaml") if "\nmethod:" in path.read_text())


def rows() -> list[tuple[str, str]]:
    """``(row, cell)`` of the page's tables of recipes."""
    tables = [part.partition("\n\n")[0].splitlines()[2:] for part in PAGE.split(HEADING)[1:]]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for table in tables for line in table]
    return [(row, cell) for row, cell in cells]


COMMANDS = list(dict.fromkeys(command for _, cell in rows() for command in re.findall(r"`([^`]+)`", cell)))


class Studio:
    """What recipes of COCO name, small, in one folder."""

    def __init__(self, materials, root: Path) -> None:
        self.materials, self.root = materials, root
        self.ids = [
            name
            for split in ("train", "val")
            for name in load_data(str(materials.data), split, images=None, format=None, size="small", limit=None).ids
        ]
        photos, listener = str(materials.photos), str(materials.listener)
        self.known: dict[str, str] = {
            "data/coco/dataset_coco.json": str(materials.data),
            "data/coco": photos,
            "data/pictures": photos,
            "photos": str(materials.data),
            "models/clip_ViT-B-32.pth": listener,
            "data/coco/annotations/image_info_unlabeled2017.json": photos,
            "data/coco/unlabeled2017": photos,
        }
        """Name in a recipe -> what stands for it."""

    def stands_for(self, name: str) -> str | None:
        """What is put in place of a model or a data set, made when it is first asked for."""
        if name not in self.known:
            if re.match(r"openai/clip|laion/CLIP|google/siglip", name):
                self.known[name] = str(self.materials.listener)
            elif name in MAKERS:
                folder = self.root / name.replace("/", "-")
                MAKERS[name](self, folder)
                self.known[name] = str(folder)
        return self.known.get(name)


def _features(studio: Studio, folder: Path, regions: int | None) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in [*studio.ids, *(path.name for path in Path(studio.materials.photos).iterdir())]:
        shape = (WIDTH,) if regions is None else (regions, WIDTH)
        np.save(folder / f"{name}.npy", rng.normal(size=shape).astype(np.float32))


def _vse(studio: Studio, folder: Path) -> None:
    regions = stored_vectors(open_features(Path(str(studio.stands_for("data/coco/cocobu_att")))))
    Vse.fresh(tiny_lstm("att2in2").tokenizer, regions, word_size=6, hidden_size=8).save(folder)


def _grammar(studio: Studio, folder: Path) -> None:
    listener = ClipListener.from_pretrained(studio.materials.listener)
    listener.save(folder)
    make_head(listener).save(folder)


def _captions(studio: Studio, path: Path) -> None:
    lines = [{"id": name, "file_name": name, "caption": CAPTIONS[i]} for i, name in enumerate(studio.ids)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _preferences(studio: Studio, path: Path) -> None:
    rows = [{"image_id": name, "chosen": CAPTIONS[i], "rejected": CAPTIONS[i + 1]} for i, name in enumerate(studio.ids)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


MAKERS: dict[str, Callable[[Studio, Path], Any]] = {
    "Salesforce/blip-image-captioning-base": lambda studio, folder: tiny_blip(folder),
    "nlpconnect/vit-gpt2-image-captioning": lambda studio, folder: tiny_ved(folder, tower="vit"),
    "Salesforce/blip2-opt-2.7b": lambda studio, folder: tiny_blip2(folder),
    "microsoft/git-base": lambda studio, folder: tiny_git(folder),
    "Salesforce/blip2-itm-vit-g": lambda studio, folder: tiny_blip2_itm(folder),
    "facebook/opt-2.7b": lambda studio, folder: saved(folder, "opt"),
    "features/coco_resnet152": lambda studio, folder: _features(studio, folder, None),
    "data/coco/cocobu_att": lambda studio, folder: _features(studio, folder, 3),
    "runs/coco_clip_transformer_xe": lambda studio, folder: tiny_ved(folder),
    "runs/coco_git_xe": lambda studio, folder: tiny_git(folder),
    "runs/coco_lstm_xe": lambda studio, folder: tiny_lstm("fc_lstm").save(folder),
    "runs/coco_att2in2_xe": lambda studio, folder: tiny_lstm("att2in2").save(folder),
    "runs/coco_att2in2_xe_sle": lambda studio, folder: tiny_lstm("att2in2").save(folder),
    "runs/coco_updown_xe": lambda studio, folder: tiny_lstm("updown").save(folder),
    "runs/coco_att2in2_luo2018": lambda studio, folder: tiny_lstm("att2in2").save(folder),
    "runs/coco_vse_hinge": _vse,
    "runs/coco_clip_grammar": _grammar,
    "runs/coco_blip_train.jsonl": _captions,
    "Qwen/Qwen2.5-VL-3B-Instruct": lambda studio, folder: tiny_qwen2_5_vl(folder),
    "preferences.jsonl": _preferences,
}
"""Name in a recipe -> what makes a tiny one."""

SMALL = {
    "captioner.new.hidden_size": 8,
    "captioner.new.min_count": 1,
    "captioner.new.attention_size": 8,
    "captioner.transformer.hidden_size": 16,
    "captioner.transformer.layers": 1,
    "captioner.transformer.heads": 2,
    "listener.new.word_size": 6,
    "listener.new.hidden_size": 8,
    "unlabelled.ranks": [2, 5],
    "evaluation.split": "val",
    "evaluation.max_new_tokens": 8,
    "objective.max_new_tokens": 8,
    "training.per_device_train_batch_size": 4,
    "training.dataloader_num_workers": 0,
}
"""Sizes of what is built; nothing that a row of a paper is about, except the length of captions."""


@pytest.fixture(scope="module")
def studio(materials, tmp_path_factory) -> Studio:
    return Studio(materials, tmp_path_factory.mktemp("studio"))


def of_listener(path: Path) -> bool:
    return "\nmethod:" not in path.read_text()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.replace(".yaml", ""))
def test_the_recipe_of_every_row_builds(command, studio):
    name, *options = shlex.split(command)
    path = ROOT / "recipes" / name
    load = load_listener_recipe if of_listener(path) else load_recipe
    recipe = load([str(path), *options, "--output_dir", "runs/x"])
    written = {key: value for key, value in flat(recipe.resolved, recipe.schema).items() if value is not None}
    changes = {key: studio.stands_for(value) for key, value in written.items() if isinstance(value, str)}
    remote = [
        f"{key}: {written[key]}"
        for key, found in changes.items()
        if found is None and "/" in written[key] and not written[key].startswith(("new/", "runs/x"))
    ]
    assert not remote, f"{remote} have no tiny counterpart: add one to MAKERS"
    changes = {key: value for key, value in changes.items() if value is not None}
    changes |= {key: value for key, value in SMALL.items() if key in written}
    words = [str(word) for key, value in changes.items() for word in (f"--{key}", value)]
    small = load([str(path), *options, *words])
    built = small.build() if of_listener(path) else small.build(dry_run=True)
    assert any(parameter.requires_grad for parameter in built.objective.parameters())
    if not of_listener(path) and not options:  # what selects is what the evaluation gives
        selects = [small.training.metric_for_best_model, *small.training.best_floor]
        assert {name for name in selects if name} <= set(built.watch(built.objective))


def test_every_row_names_a_recipe():
    assert len(rows()) > 35
    for row, cell in rows():
        assert re.search(r"`\w+\.yaml", cell), row
    words = [(ROOT / "recipes" / name, rest) for name, *rest in map(shlex.split, COMMANDS)]
    trained = {load_recipe([str(path), *rest]).method for path, rest in words if not of_listener(path)}
    assert trained == set(METHODS)


@pytest.mark.parametrize("path", ON_COCO, ids=lambda path: path.stem)
def test_checkpoints_are_selected_on_val_and_not_by_the_rewards_own_retriever(path):
    """RefCLIP-S and RefPAC-S are the published rules of DiCO, where a reward's reference-based version selects."""
    recipe = load_recipe([str(path)])
    assert recipe.evaluation.split == "val"
    metric = recipe.training.metric_for_best_model or ""
    if recipe.users("listener") and recipe.evaluation.listener is None:
        assert not metric.startswith("listener_") or metric == "listener_RefCLIPScore"
