"""``center_crop`` from the command line: what a model makes of cropped photos is what it makes of photos cut by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from pictures import images
from tellapart.cli.main import main


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """``wide`` photos and the same ``cut`` by hand, each with captions of a split train and a split val."""
    root = tmp_path_factory.mktemp("crops")
    entries = [
        {
            "filename": f"{i}.png",
            "split": "train" if i < 6 else "val",
            "imgid": i,
            "sentences": [{"raw": "a red circle"}],
        }
        for i in range(10)
    ]
    for name in ("wide", "cut"):
        (root / name).mkdir()
        (root / name / "data.json").write_text(json.dumps({"images": entries, "dataset": "tiny"}))
    for i, picture in enumerate(images(10, seed=3)):
        middle = np.asarray(picture)
        side = len(middle)
        edges = np.random.default_rng(i).integers(0, 255, (side, side, 3), np.uint8)
        wide = np.concatenate([edges[:, : side // 2], middle, edges[:, side // 2 :]], axis=1)
        Image.fromarray(wide).save(root / "wide" / f"{i}.png")
        Image.fromarray(middle).save(root / "cut" / f"{i}.png")
    return root


def run(*words) -> int:
    return main([str(word) for word in words])


def weights(folder):
    return load_file(folder / "checkpoint-2" / "captioner" / "model.safetensors")


def measured(folder):
    """The figures of a run's evaluation, and the names of their folders."""
    found = {path.parent.name: json.loads(path.read_text()) for path in (folder / "eval").glob("*/metrics.json")}
    ((name, result),) = found.items()
    return name, result["metrics"]


@pytest.fixture(scope="module")
def trained(materials, photos, tmp_path_factory):
    """The runs ``wide`` (whole photos), ``cropped`` (center_crop) and ``cut`` (cut by hand)."""
    root = tmp_path_factory.mktemp("runs")
    settings = {"wide": ("wide", False), "cropped": ("wide", True), "cut": ("cut", False)}
    for name, (data, crop) in settings.items():
        about = {"path": str(photos / data / "data.json"), "split": "train", "center_crop": crop}
        recipe = materials.recipe(root, "scst", data=about, output_dir=str(root / name), reward={"clip_s": 1.0})
        assert run("train", recipe) == 0
    return root


def test_a_training_sees_the_squares_only(trained):
    whole, cropped, cut = (weights(trained / name) for name in ("wide", "cropped", "cut"))
    assert all(torch.equal(cropped[name], cut[name]) for name in cut)
    assert not all(torch.equal(cropped[name], whole[name]) for name in cut)
    (name, metrics), (other, by_hand) = measured(trained / "cropped"), measured(trained / "cut")
    assert metrics == by_hand
    assert "center-cropped" in name
    assert "center-cropped" not in other
    assert "center_crop: true" in (trained / "cropped" / "recipe.yaml").read_text()


def test_score_goes_by_the_run_and_by_the_option(trained, photos, materials, capsys, tmp_path):
    def scored(*words):
        capsys.readouterr()
        assert run("score", *words, "--json", "--bootstrap", "0") == 0
        told = json.loads(capsys.readouterr().out)
        return told["metrics"], told["protocol"]["data"]

    by_run, data = scored(trained / "cropped")
    assert data.endswith("center-cropped")
    assert scored(trained / "cut")[0] == by_run
    words = (materials.captioner, "--listener", materials.listener, "--data")
    cut = scored(*words, photos / "cut" / "data.json")[0]
    assert scored(*words, photos / "wide" / "data.json", "--center_crop", "true")[0] == cut
    assert scored(*words, photos / "wide" / "data.json")[0] != cut
    file = tmp_path / "mine.json"
    file.write_text(json.dumps([{"image_id": i, "caption": f"a red star by {i}"} for i in range(6, 10)]))
    words = (file, "--listener", materials.listener, "--data")
    cut = scored(*words, photos / "cut" / "data.json")[0]
    assert scored(*words, photos / "wide" / "data.json", "--center_crop", "true")[0] == cut


def test_caption_goes_by_the_run_and_by_the_option(trained, photos, capsys, tmp_path):
    def captions(run_folder, data, *words):
        capsys.readouterr()
        listener = json.loads((trained / "cut" / "run.json").read_text())["recipe"]["listener"]["path"]
        words = ("--do_sample", "--top_p", "1", "--listener", listener, *words)
        assert run("caption", "--captioner", run_folder, photos / data, "--out", "jsonl", *words) == 0
        rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
        return [(row["caption"], row["match"]) for row in rows]

    output = ("--output", tmp_path / "x.jsonl", "--overwrite", "--split", "val")
    by_hand = captions(trained / "cut", "cut/data.json", *output)
    assert captions(trained / "cropped", "wide/data.json", *output) == by_hand
    assert captions(trained / "cut", "wide/data.json", "--center_crop", "true", *output) == by_hand
    assert captions(trained / "cropped", "wide/data.json", "--center_crop", "false", *output) != by_hand


def test_a_run_is_not_resumed_with_another_crop(trained, capsys):
    again = ("--resume_from_checkpoint", "last", "--data.center_crop", "false")
    assert run("train", trained / "cropped" / "recipe.yaml", *again) == 2
    assert "has data.center_crop True, not False" in capsys.readouterr().err


def test_features_are_not_cropped(materials, photos, tmp_path, capsys):
    words = ("--captioner", materials.captioner, "--features", tmp_path, "--center_crop", "true")
    assert run("caption", photos / "wide", *words) == 2
    assert "--center_crop cuts pictures, but the captioner reads --features" in capsys.readouterr().err
    for i in range(10):
        np.save(tmp_path / f"{i}.npy", np.zeros((2, 4), np.float32))
    data = {"path": str(photos / "wide" / "data.json"), "features": str(tmp_path), "center_crop": True}
    assert run("train", materials.recipe(tmp_path, "xe", data=data)) == 2
    assert "center_crop cuts pictures, but the captioner reads the features" in capsys.readouterr().err
