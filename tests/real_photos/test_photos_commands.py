"""The COCO recipes, as they are shipped, on real photos: train, resume, reload elsewhere, caption."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from real_photos.photo_models import MAKERS, clip
from tellapart.cli.main import main
from tellapart.data.load import load_dataset

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SHIPPED = {
    "coco_vitgpt2_xe": ("vit_gpt2", "xe", None),
    "coco_vitgpt2_scst_cider": ("vit_gpt2", "scst", "cider_d"),
    "coco_vitgpt2_dico": ("vit_gpt2", "dico", "clip_s"),
    "coco_blip_xe": ("blip", "xe", None),
    "coco_blip_scst_clip": ("blip", "scst", "clip_s"),
    "coco_blip_dico": ("blip", "dico", "clip_s"),
}
"""Recipe -> (family, method, its reward)."""
RESUMED = {"coco_vitgpt2_xe", "coco_blip_scst_clip", "coco_vitgpt2_dico"}
"""Those that are also cut in two: each method and each family once, since every recipe resumes by the same code."""
TEACHER = {family: recipe for recipe, (family, method, _) in SHIPPED.items() if method == "xe"}


def run(*words) -> int:
    return main([str(word) for word in words])


@dataclass(frozen=True)
class Place:
    """Models on disk for one family, and photos."""

    start: Path
    listener: Path
    data: Path
    taught: Path

    def train(self, recipe: str, folder: Path, start: Path, **changes) -> int:
        """The shipped recipe with everything that is too large for a test made small."""
        options = {
            "captioner.model_name_or_path": start,
            "data.path": self.data,
            "data.images": self.data.parent,
            "data.limit": 8,
            "listener.path": self.listener,
            "evaluation.limit": 4,
            "evaluation.max_new_tokens": 12,
            "output_dir": folder,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
            "dataloader_num_workers": 0,
            "bf16": "false",
        }
        words = [word for name, value in (options | changes).items() for word in (f"--{name}", value)]
        return run("train", RECIPES / f"{recipe}.yaml", *words)


@pytest.fixture(scope="module")
def places(coco_mini, tmp_path_factory):
    """For each family: untrained models, and a captioner that a recipe has taught six photos."""
    root = tmp_path_factory.mktemp("places")
    examples = load_dataset(coco_mini, split="train")
    captions = [text for texts in examples.references.values() for text in texts]
    listener, made = clip(root / "listener", captions), {}
    for kind, make in MAKERS.items():
        place = Place(make(root / kind, captions), listener, coco_mini, root / f"{kind}_taught")
        words = {"max_steps": 50, "per_device_train_batch_size": 6, "learning_rate": 2e-3, "captioner.train": "all"}
        words |= {"evaluation.split": "train", "evaluation.limit": 6, "data.limit": 6}
        assert place.train(TEACHER[kind], place.taught, place.start, **words) == 0
        made[kind] = place
    return made


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "captioner" / "model.safetensors")


def same(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SHIPPED)
def test_a_recipe_trains_stops_and_goes_on_to_the_same_bits(recipe, places, tmp_path):
    kind, method, reward = SHIPPED[recipe]
    place = places[kind]
    start = place.start if method == "xe" else place.taught
    assert place.train(recipe, tmp_path / "whole", start, dataloader_num_workers=2) == 0
    final = weights(tmp_path / "whole" / "checkpoint-2")
    if recipe in RESUMED:
        assert place.train(recipe, tmp_path / "cut", start, max_steps=1) == 0
        assert place.train(recipe, tmp_path / "cut", start, resume_from_checkpoint="last") == 0
        assert same(final, weights(tmp_path / "cut" / "checkpoint-2"))
        assert json.loads((tmp_path / "cut" / "run.json").read_text())["resumed_at_step"] == 1
    before = load_file(start / "model.safetensors") if method == "xe" else weights(start / "best")
    tower = ("encoder.", "vision_model.")
    assert any(name.startswith(tower) for name in final)
    moved = {name for name, tensor in final.items() if not torch.equal(tensor, before[name])}
    assert moved
    assert not [name for name in moved if name.startswith(tower)], "train: decoder leaves the image tower alone"

    lines = [line for line in lines_of(tmp_path / "whole") if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(math.isfinite(line["loss"]) for line in lines)
    if reward is not None:
        assert any(line["reward"] > 0 for line in lines)
        assert all(line["reward"] == pytest.approx(line[f"rewards/{reward}"]) for line in lines)
    evaluated = [line for line in lines_of(tmp_path / "whole") if "eval_CIDEr" in line]
    assert [line["step"] for line in evaluated] == [0, 2]
    assert all(0 <= line["eval_listener_R@1"] <= 100 for line in evaluated)


def plain_captions(kind: str, folder: Path, photos: list[Path]) -> list[str]:
    """What transformers alone says of the photos."""
    from transformers import (
        AutoImageProcessor,
        AutoTokenizer,
        BlipForConditionalGeneration,
        VisionEncoderDecoderModel,
    )

    loaders = {"vit_gpt2": VisionEncoderDecoderModel, "blip": BlipForConditionalGeneration}
    model = loaders[kind].from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor([Image.open(photo).convert("RGB") for photo in photos], return_tensors="pt")
    output = model.generate(**pixels, num_beams=3, max_new_tokens=12)
    told = AutoTokenizer.from_pretrained(folder).batch_decode(output, skip_special_tokens=True)
    return [" ".join(text.split()) for text in told]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_a_run_captions_photos_as_plain_transformers_does(kind, places, coco_mini, capsys):
    place = places[kind]
    first, last = (line["eval_CIDEr"] for line in lines_of(place.taught) if "eval_CIDEr" in line)
    assert last > first + 0.5, f"CIDEr of the taught photos: {first:.2f} before, {last:.2f} after"
    taught = load_dataset(coco_mini, split="train", limit=6)
    photos = [example.image.path for example in taught]
    photos += [example.image.path for example in load_dataset(coco_mini, split="val", limit=4)]
    capsys.readouterr()
    words = ("--captioner", place.taught, "--num_beams", "3", "--max_new_tokens", "12", "--batch_size", "5")
    assert run("caption", *photos, *words) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [path for path, _ in lines] == [str(photo) for photo in photos]
    said = [caption for _, caption in lines]
    assert len(set(said[:6])) > 3, "different photos, different captions"
    assert plain_captions(kind, place.taught / "best" / "captioner", photos) == said
