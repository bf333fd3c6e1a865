"""What commands of the campaign start from: tiny models, pictures, recipes, a trained run, judgements."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from materials import Materials, make_materials
from method_recipes import Parts, make_parts, method_recipe
from pictures import CAPTIONS, images
from tellapart.cli.main import main
from tellapart.objectives import METHODS
from tiny_models import redraw


@dataclass(frozen=True)
class Given:
    """Paths; nothing below ``root`` is written to by a try."""

    root: Path
    materials: Materials
    parts: Parts

    @property
    def data(self) -> Path:
        """Eight pictures with captions."""
        return self.root / "eight"

    @property
    def album(self) -> Path:
        """Twenty pictures without captions."""
        return self.root / "album"

    @property
    def run(self) -> Path:
        """A finished training."""
        return self.root / "run"

    @property
    def vision(self) -> Path:
        """A vision model."""
        return self.root / "vit"

    @property
    def ratings(self) -> Path:
        """Rated captions of the materials' photos."""
        return self.root / "ratings.csv"

    def recipe(self, method: str, **changes: Any) -> dict[str, Any]:
        """A training of four steps that saves after each."""
        written = method_recipe(method, self.materials, self.parts, str(self.data))
        written |= {"max_steps": 4, "save_steps": 1, "save_total_limit": 2}
        if METHODS[method].needs_reward or method == "xe":
            written |= {"evaluation": {"path": str(self.data), "split": "train", "max_new_tokens": 6, "limit": 4}}
            written |= {
                "eval_steps": 2,
                "metric_for_best_model": "CIDEr",
                "listener": {"path": str(self.materials.listener)},
            }
            if method == "xe":
                del written["listener"]
        return written | changes


def make_given(root: Path) -> Given:
    """Write it all below ``root``."""
    materials = make_materials(root)
    parts = make_parts(root / "parts", materials)
    given = Given(root, materials, parts)
    given.data.mkdir()
    given.album.mkdir()
    pictures = images(20)
    for i in range(8):
        pictures[i].save(given.data / f"{i}.png")
    rows = [{"file_name": f"{i}.png", "text": [CAPTIONS[2 * i], CAPTIONS[2 * i + 9]]} for i in range(8)]
    (given.data / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for i, picture in enumerate(pictures):
        picture.save(given.album / f"{i:02}.png")
    lines = ["imgid,mt,refs,score"]
    for i in range(8):
        lines += [f'{i:02}.png,{CAPTIONS[2 * i + 20 * k]},"{[CAPTIONS[2 * i + 9]]}",{0.1 * i + k}' for k in (0, 1)]
    given.ratings.write_text("\n".join(lines) + "\n")
    _save_vision(given.vision)
    settings = given.recipe("scst", evaluation={"path": str(materials.data), "split": "val", "max_new_tokens": 6})
    (root / "run.yaml").write_text(json.dumps(settings | {"output_dir": str(given.run), "learning_rate": 3e-2}))
    assert main(["train", str(root / "run.yaml")]) == 0
    return given


def _save_vision(folder: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=16))
    redraw(model, std=0.25, seed=0)
    model.save_pretrained(folder)
    transformers.CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False).save_pretrained(folder)


def given_at(root: Path) -> Given:
    """What :func:`make_given` wrote."""
    materials = Materials(root / "captioner", root / "listener", root / "photos" / "data.json", root / "photos")
    names = {"own_listener": "own", "grammar": "grammar", "preferences": "pairs.jsonl"}
    parts = {part: str(root / "parts" / name) for part, name in names.items()}
    return Given(root, materials, parts | {"photos": str(materials.photos)})
