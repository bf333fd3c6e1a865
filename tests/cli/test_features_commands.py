"""Captioners that read features, from the command line: features, train, resume, score, caption."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from pictures import CAPTIONS, images
from tellapart.cli.main import main
from tellapart.data.features.open import open_features
from tellapart.locks import NAME as LOCK
from tellapart.locks import Lock
from tellapart.recipe.feature_inputs import needs_pictures
from tellapart.recipe.recipe import Recipe
from tiny_models import redraw

TYPES = ("fc_lstm", "att2in2", "updown")


def run(*words) -> int:
    return main([str(word) for word in words])


@dataclass(frozen=True)
class Album:
    """Twelve pictures with two captions each, a vision model, and features of both kinds."""

    root: Path

    def features(self, kind: str) -> Path:
        return self.root / {"fc_lstm": "mean", "att2in2": "grid", "updown": "grid"}[kind]

    def train(self, kind: str, folder: Path, method: str = "xe", start: str | None = None, **options) -> int:
        chosen = {
            "method": method,
            "captioner.model_name_or_path": start or f"new/{kind}",
            "data.path": self.root / "data.json",
            "data.features": self.features(kind),
            "evaluation.max_new_tokens": 8,
            "output_dir": folder,
            "learning_rate": 1e-2,
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
        }
        if start is None:
            chosen["captioner.new"] = json.dumps({"hidden_size": 32, "min_count": 1})
        if method == "scst":
            chosen |= {"reward.cider_d": 1, "objective.max_new_tokens": 8, "learning_rate": 1e-3}
        return run("train", *[word for name, value in (chosen | options).items() for word in (f"--{name}", value)])


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Album:
    """Features are computed, then the pictures are taken away: nothing below needs them."""
    root = tmp_path_factory.mktemp("album")
    model = transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=32,
            patch_size=16,
        )
    )
    redraw(model, std=0.25, seed=0)
    model.save_pretrained(root / "vit")
    processor = transformers.CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    processor.save_pretrained(root / "vit")
    entries = []
    for i, picture in enumerate(images(12)):
        picture.save(root / f"{i:02}.png")
        sentences = [{"raw": CAPTIONS[(5 * i + k) % 64]} for k in (0, 0)]
        split = "train" if i < 8 else "val"
        entries.append({"filename": f"{i:02}.png", "split": split, "imgid": i, "sentences": sentences})
    (root / "data.json").write_text(json.dumps({"images": entries, "dataset": "tiny"}))
    for pool in ("mean", "grid"):
        words = ["--model", root / "vit", "--pool", pool, "--output_dir", root / pool, "--batch_size", 5]
        assert run("features", root / "data.json", *words) == 0
    (root / "pictures").mkdir()
    for picture in root.glob("*.png"):
        picture.rename(root / "pictures" / picture.name)
    return Album(root)


@pytest.fixture(scope="module", params=TYPES)
def taught(request, album, tmp_path_factory) -> tuple[str, Path]:
    """A captioner that has learned the training captions by heart."""
    folder = tmp_path_factory.mktemp("taught") / request.param
    steps = 200 if request.param == "updown" else 60  # two LSTMs take longer
    options = {"max_steps": steps, "per_device_train_batch_size": 8, "evaluation.split": "train"}
    assert album.train(request.param, folder, **options) == 0
    return request.param, folder


def weights(run_folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run_folder / f"checkpoint-{step}" / "captioner" / "model.safetensors")


def test_features_are_of_all_splits_and_go_on(album, capsys):
    features = open_features(album.root / "grid")
    assert all(features[str(i)].shape == (4, 16) for i in range(12))
    mean = open_features(album.root / "mean")
    np.testing.assert_allclose(mean["3"], features["3"].mean(axis=0), atol=1e-6)
    words = ["--model", album.root / "vit", "--pool", "mean", "--output_dir", album.root / "mean"]
    assert run("features", album.root / "data.json", "--images", album.root / "pictures", *words) == 0
    assert "features of 12 images (mean, 16 wide), 0 computed now" in capsys.readouterr().out


def test_features_of_a_table_with_names_of_its_own(album, tmp_path, capsys):
    """The error asked for a column that the command had no option for, and ids of another column had no features."""
    rows = [f"{album.root}/pictures/{i:02}.png,n{i},a cup" for i in range(3)]
    (tmp_path / "t.csv").write_text("\n".join(["photo,number,text", *rows]))
    command = ["features", tmp_path / "t.csv", "--model", album.root / "vit", "--output_dir", tmp_path / "out"]
    assert run(*command) == 2
    assert "give image_column" in capsys.readouterr().err
    assert run(*command, "--image_column", "photo", "--id_column", "number") == 0
    features = open_features(tmp_path / "out")
    for i in range(3):
        np.testing.assert_allclose(features[f"n{i}"], open_features(album.root / "mean")[str(i)], atol=1e-6)


@pytest.mark.parametrize("left", ["half", "header", "rows", "none"])
def test_features_of_damaged_files_are_computed_again(album, tmp_path, capsys, left):
    """They were counted as there, and whoever read them later was told."""
    shutil.copytree(album.root / "mean", tmp_path / "mean")
    (array,) = (tmp_path / "mean").glob("*.npy")
    whole = np.load(array)
    if left == "none":
        array.unlink()
    elif left == "rows":
        np.save(array, whole[:3])
    else:
        array.write_bytes(array.read_bytes()[: 20 if left == "header" else array.stat().st_size // 2])
    words = ["--model", album.root / "vit", "--pool", "mean", "--output_dir", tmp_path / "mean"]
    command = ["features", album.root / "data.json", "--images", album.root / "pictures", *words]
    assert run(*command) == 0
    told = capsys.readouterr()
    assert "features of 12 images (mean, 16 wide), 12 computed now" in told.out
    assert array.name in told.err
    assert "its images are computed again" in told.err
    again = open_features(tmp_path / "mean")
    assert all((again[str(i)] == open_features(album.root / "mean")[str(i)]).all() for i in range(12))
    assert run(*command) == 0
    assert "0 computed now" in capsys.readouterr().out


def test_fewer_than_no_workers_are_refused(album, tmp_path, capsys):
    words = ["--model", album.root / "vit", "--output_dir", tmp_path / "x", "--num_workers", "-1"]
    assert run("features", album.root / "data.json", "--images", album.root / "pictures", *words) == 2
    assert "num_workers is '-1', but must be a whole number of at least 0" in capsys.readouterr().err


def test_two_commands_do_not_fill_one_folder(album, capsys):
    """Both computed what neither found there, and it was stored twice."""
    before = sorted(path.name for path in (album.root / "mean").iterdir())
    with Lock(album.root / "mean" / LOCK, "computing features into"):
        words = ["--model", album.root / "vit", "--pool", "mean", "--output_dir", album.root / "mean"]
        assert run("features", album.root / "data.json", "--images", album.root / "pictures", *words) == 2
    assert "another process is computing features into" in capsys.readouterr().err
    assert sorted(path.name for path in (album.root / "mean").iterdir()) == before


def test_the_captions_are_learnt_from_the_features(taught, album):
    """Every image has its own caption twice; captions can only be right if the features tell the images apart."""
    _, folder = taught
    (evaluated,) = (folder / "eval").iterdir()
    rows = json.loads((evaluated / "captions_results.json").read_text())
    assert {row["caption"] for row in rows} == {CAPTIONS[(5 * i) % 64] for i in range(8)}


def test_reports_need_no_pictures(taught, tmp_path):
    _, folder = taught
    assert run("report", folder, "--output", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "There are no pictures: none of data.json (train) can be read here." in page
    assert page.count("<article") == 8
    assert "<img" not in page
    card = (folder / "README.md").read_text()
    assert "library_name: tellapart" in card
    assert "It needs tellapart: `tellapart caption" in card


def test_scst_follows_and_resumes_to_the_bit(taught, album, tmp_path):
    kind, folder = taught
    assert album.train(kind, tmp_path / "whole", "scst", str(folder), save_steps=2) == 0
    (tmp_path / "cut").mkdir()
    for name in ("run.json", "metrics.jsonl"):
        shutil.copy(tmp_path / "whole" / name, tmp_path / "cut" / name)
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "cut" / "checkpoint-2")
    assert album.train(kind, tmp_path / "cut", "scst", str(folder), save_steps=2, resume_from_checkpoint="last") == 0
    before, whole, cut = weights(tmp_path / "whole", 2), weights(tmp_path / "whole", 4), weights(tmp_path / "cut", 4)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert any(not torch.equal(whole[name], before[name]) for name in whole)


@pytest.mark.parametrize("kind", TYPES)
def test_a_new_captioner_is_drawn_from_the_seed_and_resumes_to_the_bit(kind, album, tmp_path):
    options = {"save_steps": 2, "dropout": "true", "objective.scheduled_sampling": 0.5}
    options |= {"objective.scheduled_sampling_increase": 0.25, "objective.scheduled_sampling_steps": 1}
    options |= {"lr_scheduler_type": "step", "lr_step_epochs": 0.5, "lr_step_gamma": 0.5}
    assert album.train(kind, tmp_path / "whole", **options) == 0
    (tmp_path / "cut").mkdir()
    for name in ("run.json", "metrics.jsonl"):
        shutil.copy(tmp_path / "whole" / name, tmp_path / "cut" / name)
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "cut" / "checkpoint-2")
    assert album.train(kind, tmp_path / "cut", **options, resume_from_checkpoint="last") == 0
    whole, cut = weights(tmp_path / "whole", 4), weights(tmp_path / "cut", 4)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    shares = [line["scheduled_sampling/own_words"] for line in lines if "scheduled_sampling/own_words" in line]
    assert len(shares) == 3, "the probability is 0 in the first step"
    assert any(shares)


def test_score_and_caption_read_the_features(taught, album, tmp_path, capsys):
    kind, folder = taught
    assert run("score", folder, "--split", "train", "--output_dir", tmp_path / "scored") == 0
    assert "100.0" in capsys.readouterr().out
    data, features = album.root / "data.json", album.features(kind)
    words = ["--captioner", folder, "--split", "train", "--gate", "none", "--num_beams", 1]
    assert run("caption", data, *words, "--features", features, "--output", tmp_path / "c.json") == 0
    rows = json.loads((tmp_path / "c.json").read_text())
    assert {str(row["image_id"]): row["caption"] for row in rows} == {str(i): CAPTIONS[(5 * i) % 64] for i in range(8)}
    capsys.readouterr()
    assert run("caption", album.root / "pictures", "--captioner", folder) == 2
    assert "reads features 16 wide, not pictures: make them with tellapart features" in capsys.readouterr().err


def test_a_folder_is_captioned_from_the_features_of_that_folder(taught, album, tmp_path, capsys):
    """They are named by paths below it; a folder of arrays names them without the ending."""
    kind, folder = taught
    pool, photos = album.features(kind).name, album.root / "pictures"
    words = ["--model", album.root / "vit", "--pool", pool, "--output_dir", tmp_path / "store"]
    assert run("features", photos, *words) == 0
    (tmp_path / "arrays").mkdir()
    store = open_features(tmp_path / "store")
    for name in sorted(path.name for path in photos.iterdir()):
        np.save(tmp_path / "arrays" / f"{Path(name).stem}.npy", store[name])
    captions = []
    for features in ("store", "arrays"):
        output = tmp_path / f"{features}.json"
        how = ["--captioner", folder, "--gate", "none", "--features", tmp_path / features, "--output", output]
        assert run("caption", photos, *how) == 0
        captions.append([row["caption"] for row in json.loads(output.read_text())])
    assert len(captions[0]) == 12
    assert captions[0] == captions[1]
    assert captions[0][:8] == [CAPTIONS[(5 * i) % 64] for i in range(8)]
    shutil.copytree(photos, tmp_path / "again")
    capsys.readouterr()
    assert run("caption", photos, tmp_path / "again", "--captioner", folder, "--features", tmp_path / "store") == 2
    assert "are both '00.png' below their folders, so --features cannot tell them apart" in capsys.readouterr().err


def test_an_image_without_features_stops_or_is_left_out(album, tmp_path, capsys):
    few = tmp_path / "few"
    few.mkdir()
    grid = open_features(album.root / "grid")
    for i in range(12):
        if i not in (3, 9):
            np.save(few / f"{i}.npy", grid[str(i)])
    np.save(few / "5.npy", np.zeros((0, 16), dtype=np.float32))
    options = {"data.features": few, "max_steps": 1}
    assert album.train("att2in2", tmp_path / "run", **options) == 2
    assert "has no features of 1 of the 8 images of data.json (train), first '3'" in capsys.readouterr().err
    assert album.train("att2in2", tmp_path / "run", **options, **{"data.on_error": "skip"}) == 0
    left = (tmp_path / "run" / "skipped_images.txt").read_text()
    assert [line.split("\t")[0] for line in left.splitlines()] == ["3", "5", "9"]
    assert "hold no region" in left


@pytest.mark.parametrize(
    ("changes", "looks"),
    [
        ({"reward": ["cider_d"]}, False),
        ({"reward": [{"name": "clip_s", "listener": {"path": "x"}}]}, True),
        ({"reward": [{"name": "itm", "matcher": {"model": "x"}}]}, True),
        ({"reward": ["lookalikes"], "neighbours.listener": "x"}, True),
    ],
)
def test_what_looks_at_pictures_next_to_features(changes, looks):
    """Else on_error: skip left broken pictures in the data of a training whose reward's own listener reads them."""
    recipe = Recipe.load(
        {"method": "scst", "captioner": {"model_name_or_path": "new/fc_lstm"}, "data": {"path": "x", "features": "f"}},
        changes,
    )
    assert needs_pictures(recipe) == looks


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"data.features": "none"}, "features none do not exist"),
        (
            {"captioner.model_name_or_path": "new/gru"},
            "new/gru is not a captioner that can be made: choose new/fc_lstm, new/att2in2, new/updown.",
        ),
        ({"captioner.new": '{"min_count": 99}'}, "lower captioner.new.min_count"),
        ({"captioner.lora.r": "4"}, "new/fc_lstm begins with random ones: leave lora out"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(album, tmp_path, capsys, options, reason):
    assert album.train("fc_lstm", tmp_path / "run", **options) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "Traceback" not in said


def test_captioner_and_features_must_fit(taught, album, tmp_path, capsys):
    kind, folder = taught
    wide = tmp_path / "wide"
    wide.mkdir()
    for i in range(12):
        np.save(wide / f"{i}.npy", np.zeros((2, 20), dtype=np.float32))
    assert album.train(kind, tmp_path / "a", "scst", str(folder), **{"data.features": wide}) == 2
    assert "are 20 wide, but the captioner was made for 16" in capsys.readouterr().err
    section = {"captioner.new": '{"hidden_size": 8}'}
    assert album.train(kind, tmp_path / "b", "scst", str(folder), **section) == 2
    assert "captioner.new is for a captioner with random weights" in capsys.readouterr().err
    assert album.train(kind, tmp_path / "d", "scst", str(folder), **{"captioner.lora.r": "4"}) == 2
    assert "trains in full: leave lora out" in capsys.readouterr().err
    if kind != "fc_lstm":
        assert album.train(kind, tmp_path / "c", **{"data.features": album.root / "mean"}) == 2
        assert (
            f"{kind} captioners attend to regions, but the features are one vector per image" in capsys.readouterr().err
        )


def test_a_captioner_without_weights_cannot_caption(album, capsys):
    assert (
        run("caption", album.root / "data.json", "--captioner", "new/fc_lstm", "--features", album.root / "mean") == 2
    )
    assert "new/fc_lstm is a captioner to train, without weights yet" in capsys.readouterr().err


def test_features_of_broken_pictures_and_of_no_model(album, tmp_path, capsys):
    photos = tmp_path / "photos"
    shutil.copytree(album.root / "pictures", photos)
    (photos / "04.png").write_bytes(b"no picture")
    words = ["--model", album.root / "vit", "--output_dir", tmp_path / "f"]
    assert run("features", photos, *words) == 2
    assert "04.png" in capsys.readouterr().err
    assert run("features", photos, *words, "--on_error", "skip") == 0
    said = capsys.readouterr()
    assert "features of 11 images" in said.out
    assert "1 of 12 images could not be read and were left out" in said.err
    assert run("features", photos, *words, "--on_error", "skip", "--strict") == 2
    capsys.readouterr()
    assert run("features", photos, *words, "--pool", "grid") == 2
    assert "holds features with pool 'mean', not pool 'grid'" in capsys.readouterr().err
    assert run("features", photos, *words, "--pool", "grid", "--on_error", "skip", "--overwrite") == 0
    for path in photos.iterdir():
        path.write_bytes(b"no picture")
    words[-1] = tmp_path / "none"
    assert run("features", photos, *words, "--on_error", "skip") == 2, "nothing could be read"
    assert run("features", photos, "--model", tmp_path, "--output_dir", tmp_path / "g") == 2
    assert run("features", photos, photos, *words) == 2
