"""The recipes of the built-in world, on its small size."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tellapart.cli.main import main
from tellapart.data.load import load_dataset
from tellapart.world import load_world
from tellapart.world.probes import probe_all

SHIPPED = (Path(__file__).parents[2] / "recipes").glob("world_*.yaml")
RECIPES = sorted(path for path in SHIPPED if "\nmethod:" in path.read_text())
VARIANTS = {
    "world_ved_dico_cider",
    "world_ved_dico_negclip_cider",
    "world_ved_dico_truth",
    "world_ved_psst_gumbel",
    "world_ved_rl_unidirectional",
    "world_ved_scst_clip",
    "world_ved_scst_clip_beams",
    "world_ved_scst_clip_hacking",
    "world_ved_scst_clip_kl",
    "world_ved_scst_pac",
    "world_ved_scst_pac_kl",
    "world_ved_wtf_rl_stable",
    "world_video_lstm_sle",
    "world_video_lstm_sll",
}
"""Recipes whose parts all stand in another one, with other weights: they run every night."""

SHORT = ["--data.size", "small", "--max_steps", "1", "--eval_steps", "1", "--evaluation.limit", "8"]


def test_variants_are_recipes():
    assert {path.stem for path in RECIPES} > VARIANTS


def test_built_in_images_are_written_to_files(tmp_path, capsys):
    words = ["data", "convert", "world", str(tmp_path / "out"), "--to", "folder", "--size", "small"]
    assert main([*words, "--split", "test", "--limit", "4"]) == 0
    assert "test: 4 images, 20 captions" in capsys.readouterr().out
    written, world = load_dataset(tmp_path / "out"), load_world("test", size="small")
    for ours, theirs in zip(written, world, strict=False):
        assert (ours.id, ours.references) == (theirs.id, theirs.references)
        assert np.array_equal(np.asarray(ours.image.open()), theirs.image.array)
    assert len(written) == 4


@pytest.mark.slow
def test_world_is_built_and_probed(capsys, monkeypatch):
    monkeypatch.setattr("tellapart.world.probes.probe_all", cache(probe_all))  # both forms print one probe
    assert main(["world", "--size", "small"]) == 0
    said = capsys.readouterr().out
    folders = [Path(line.split()[2]) for line in said.splitlines()[2:9]]
    assert all(folder.is_dir() for folder in folders)
    assert {"place", "veto", "doubled", "count", "broken", "truthful"} <= {
        line.split()[0] for line in said.splitlines() if line
    }
    assert main(["world", "--size", "small", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stages"]
    assert found["world/sighted"]["probe"] == found["world/verifier"]["probe"]
    assert {"place", "relation", "veto"} <= set(found["world/judge"]["probe"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(path, marks=[pytest.mark.nightly] if path.stem in VARIANTS else [], id=path.stem)
        for path in RECIPES
    ],
)
def test_every_recipe_of_the_world_runs(recipe, tmp_path):
    images = ["--per_device_train_batch_size", "8", "--data.limit", "24"]
    if "gradient_accumulation_steps" in recipe.read_text():
        images += ["--gradient_accumulation_steps", "2"]
    if "discriminator:" in recipe.read_text():
        images += ["--discriminator.pretraining_steps", "4"]
    # The highest rates are too high for eight images of the small world: a step of them does not go well.
    for rate in (
        "learning_rate: 3.0e-4",
        "learning_rate: 2.0e-4",
        "learning_rate: 1.0e-4",
        "learning_rate: {captioner: 3.0e-4",
        "learning_rate: {captioner: 1.0e-4",
    ):
        if rate in recipe.read_text():
            slow = "3e-6" if "world/blip2," in recipe.read_text() else "3e-5"
            images += ["--learning_rate.captioner" if "{" in rate else "--learning_rate", slow]
    # After one step CIDEr may be a little below, and of eight captions the one that was true may not be.
    for floor, metric, lower in (("{CIDEr: 1.0}", "CIDEr", "0.5"), ("{truthful: 0.985}", "truthful", "0.0")):
        if f"best_floor: {floor}" in recipe.read_text():
            images += [f"--best_floor.{metric}", lower]
    if "features:" in recipe.read_text():
        where = ["--size", "small", "--output_dir", str(tmp_path / "f")]
        assert main(["features", *features_of(recipe), *where]) == 0
        images += ["--data.features", str(tmp_path / "f")]
    assert main(["train", str(recipe), *SHORT, *images, "--output_dir", str(tmp_path / "run")]) == 0
    (folder,) = (tmp_path / "run" / "eval").iterdir()
    metrics = json.loads((folder / "metrics.json").read_text())["metrics"]
    # the moving world has no judge, and its recall is exact
    recalls = {"listener_R@1", "judge_R@1"} if "world/video" not in recipe.read_text() else {"exact_recall@1"}
    assert {"CIDEr"} | recalls <= set(metrics)
    assert any(name.startswith("world_") or "grammatical" in name for name in metrics)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines if "eval_CIDEr" in line} == {0, 1}
    # The doctor has nothing to say of a step that goes well.
    assert [line["doctor/verdicts"] for line in lines if "eval_CIDEr" in line] == [0, 0]


def features_of(recipe: Path) -> list[str]:
    """The data, the model and the pooling that a recipe's own remarks say its features are made of."""
    (line,) = [line for line in recipe.read_text().splitlines() if "tellapart features world" in line]
    return line.split("tellapart features ")[1].split(" --output_dir")[0].split()


@pytest.mark.slow
def test_the_untrained_start_is_drawn_from_the_seed(tmp_path):
    from tellapart.errors import UsageError
    from tellapart.recipe.models import load_captioner
    from tellapart.recipe.sections import CaptionerSection, LoraSection

    section = CaptionerSection(model_name_or_path="world/backbone")
    first, again, other = (load_captioner(section, size="small", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(bool((first[name] == again[name]).all()) for name in first)
    assert any(bool((first[name] != other[name]).any()) for name in first)
    with pytest.raises(UsageError, match="leave lora out"):
        load_captioner(CaptionerSection(model_name_or_path="world/backbone", lora=LoraSection()), size="small", seed=1)
