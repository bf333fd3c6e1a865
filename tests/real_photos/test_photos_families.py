"""The recipes of large models, as they are shipped, with tiny models of the same families and a few photos."""

from __future__ import annotations

from pathlib import Path

import pytest

from family_checks import make
from real_photos.photo_models import clip
from tellapart.cli.main import main
from tellapart.data.load import load_dataset

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SHIPPED = {"coco_blip2_dico_lora": "BLIP-2 (OPT)", "photos_qwen25vl_scst_clip": "Qwen2.5-VL"}


@pytest.mark.parametrize("recipe", SHIPPED)
def test_a_recipe_trains_and_captions(recipe, coco_mini, tmp_path, capsys):
    examples = load_dataset(coco_mini, split="train", limit=12)
    captions = [text for texts in examples.references.values() for text in texts]
    make(SHIPPED[recipe], tmp_path / "model", captions=captions, vocab=600)
    options = {
        "captioner.model_name_or_path": tmp_path / "model",
        "data.path": coco_mini,
        "data.images": coco_mini.parent,
        "data.limit": 6,
        "listener.path": clip(tmp_path / "listener", captions),
        "evaluation.judge": tmp_path / "listener",
        "evaluation.limit": 4,
        "evaluation.max_new_tokens": 8,
        "objective.max_new_tokens": 8,
        "output_dir": tmp_path / "run",
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "logging_steps": 1,
        "dataloader_num_workers": 0,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    assert main(["train", str(RECIPES / f"{recipe}.yaml"), *words]) == 0
    photo = next((coco_mini.parent / "val2017").glob("*.jpg"))
    capsys.readouterr()
    assert main(["caption", str(photo), "--captioner", str(tmp_path / "run"), "--max_new_tokens", "8"]) == 0
    assert capsys.readouterr().out.startswith(str(photo))
