"""Training and scoring on images without captions, from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from command_recipes import load_recipe
from tellapart.cli.main import main
from tellapart.data.load import load_dataset
from tellapart.errors import UsageError
from tellapart.recipe import score as score_captioner
from tellapart.recipe.feature_inputs import features_at
from tellapart.recipe.images import training_images, watched_images
from tellapart.recipe.measured import DataOptions, load
from tellapart.recipe.runs import made_by
from unlabelled_files import cut, jpeg, shard, write_tar, write_video

pytest.importorskip("av", reason="videos need tellapart[video]")


def run(*words) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Files, shards and a video; a text called .jpg, an empty member, a shard without its end, a broken video."""
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(6):
        (folder / f"{i}.jpg").write_bytes(jpeg(i))
    (folder / "text.jpg").write_text("not found")
    shard(folder / "0.tar", 10, 8)
    write_tar(folder / "1.tar", {"20.jpg": jpeg(20), "21.jpg": b"", "22.jpg": jpeg(22)[:400], "23.jpg": jpeg(23)})
    cut(shard(folder / "2.tar", 30, 8), 0.5)
    write_video(folder / "film.mp4", seconds=2)
    (folder / "broken.mp4").write_bytes(b"\0" * 100)
    return folder


@pytest.fixture
def recipe(materials, pictures, tmp_path):
    """``recipe(method, **changes)``: one without references."""

    def write(method: str, **changes):
        data = {"path": str(pictures), "on_error": "replace"} | changes.pop("data", {})
        usual = {
            "data": data,
            "reward": {"clip_s": 1.0},
            "evaluation": {"held_out": 6, "max_new_tokens": 8},
            "max_steps": 6,
            "save_steps": 3,
            "per_device_train_batch_size": 4,
        }
        return materials.recipe(tmp_path, method, **(usual | changes))

    return write


BROKEN = {"text.jpg", "1.tar/21.jpg", "1.tar/22.jpg"}
DAMAGED = {"2.tar", "broken.mp4"}


def weights(folder):
    return {name: tensor.tolist() for name, tensor in load_file(folder / "captioner" / "model.safetensors").items()}


def logged(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def listed(folder):
    return {line.split("\t")[0] for line in (folder / "skipped_images.txt").read_text().splitlines()}


def test_broken_images_are_replaced_and_counted_and_resuming_is_exact(recipe, tmp_path, capsys):
    """Through a checkpoint in the middle of the shards, by two processes that read ahead: bit for bit the same weights."""
    path = recipe("scst")
    assert run("train", path, "--output_dir", tmp_path / "whole") == 0
    whole, told = logged(tmp_path / "whole"), capsys.readouterr().err
    seen = listed(tmp_path / "whole")
    assert DAMAGED < seen <= DAMAGED | BROKEN
    assert whole[-2]["unreadable_images"] == len(seen - DAMAGED) > 0
    assert f"images that could not be read and were replaced by others: {len(seen - DAMAGED)};" in told
    assert "2.tar is not a whole tar archive" in told
    assert {"eval_listener_R@1", "eval_Self-BLEU"} <= whole[0].keys()
    assert not [key for key in whole[0] if "CIDEr" in key or "RefCLIP" in key]

    assert run("train", path, "--output_dir", tmp_path / "parts", "--max_steps", 3) == 0
    words = ("--output_dir", tmp_path / "parts", "--resume_from_checkpoint", "last", "--dataloader_num_workers", 2)
    assert run("train", path, *words) == 0
    parts = logged(tmp_path / "parts")
    assert weights(tmp_path / "parts" / "checkpoint-6") == weights(tmp_path / "whole" / "checkpoint-6")
    assert weights(tmp_path / "parts" / "checkpoint-6") != weights(tmp_path / "parts" / "checkpoint-3")
    assert listed(tmp_path / "parts") == seen
    assert parts[-2]["unreadable_images"] == whole[-2]["unreadable_images"]


def test_what_was_held_out_is_never_trained_on_and_is_scored_later(recipe, pictures, tmp_path, capsys):
    path = recipe("dico", data={"shuffle_window": 8})
    assert run("train", path, "--output_dir", tmp_path / "run", "--max_steps", 1) == 0
    assert "are trained on" not in capsys.readouterr().err
    (measured,) = (tmp_path / "run" / "eval").iterdir()
    held = {row["image_id"] for row in json.loads((measured / "captions_results.json").read_text())}
    everything = load_dataset(pictures, split="train", missing_files=True).ids
    assert len(everything) == len(set(everything))
    assert 6 - len(BROKEN) <= len(held) <= 6
    assert held < set(everything)
    assert run("score", tmp_path / "run", "--output_dir", tmp_path / "scored") == 0
    (again,) = (tmp_path / "scored" / "eval").iterdir()
    rows = json.loads((again / "captions_results.json").read_text())
    assert {row["image_id"] for row in rows} == held


@pytest.mark.parametrize(("read", "limit"), [("pictures", 2), ("features", None), ("features and pictures", None)])
def test_scoring_holds_out_what_the_training_did(recipe, tmp_path, read, limit):
    """Of twelve images one that would be held out is broken: left out before, unless nothing ever opens a picture."""
    folder, features = tmp_path / "photos", tmp_path / "features"
    folder.mkdir()
    features.mkdir()
    for i in range(12):
        (folder / f"{i}.jpg").write_bytes(jpeg(i))
        np.save(features / f"{i}.jpg.npy", np.zeros((1, 4), dtype=np.float32))
    data = {"path": str(folder), "format": "unlabelled", "on_error": "skip"}
    data |= {} if read == "pictures" else {"features": str(features)}
    listens = {"reward": {"cider_d": 1.0}, "listener": {}} if read == "features" else {}

    def held_out() -> list[str]:
        path = recipe("scst", data=data, evaluation={"held_out": 4, "limit": limit}, **listens)
        made = load_recipe([str(path)])
        trained, held, _ = training_images(made, features_at(made.data.features))
        assert held is not None
        assert not set(trained.ids) & set(held.ids)
        assert load(DataOptions(), made_by(made.resolved)).dataset.ids == held.ids
        with pytest.raises(UsageError, match="limit is -1: keep at least 1 image"):  # it dropped the last image
            load(DataOptions(limit=-1), made_by(made.resolved))
        for how in ({"pictures": True}, {"seen_by": ("some/listener",)}):  # whatever the run opens: none is broken
            opened = load(DataOptions(), made_by(made.resolved), **how).dataset
            assert all((folder / image_id).stat().st_size for image_id in opened.ids)
        return held.ids

    whole = held_out()
    assert len(whole) == (limit or 4)
    (folder / whole[0]).write_bytes(b"")
    again = held_out()
    assert len(again) == len(whole)
    assert (whole[0] in again) == (read == "features")


def test_scoring_leaves_out_what_the_evaluation_of_the_run_did(recipe, tmp_path):
    """A broken picture whose features are whole: out for a listener, of the run or of the options; in where nothing looks."""
    folder, features = tmp_path / "photos", tmp_path / "features"
    folder.mkdir()
    features.mkdir()
    for i in range(4):
        (folder / f"{i}.jpg").write_bytes(jpeg(i) if i else b"")
        np.save(features / f"{i}.jpg.npy", np.zeros((1, 4), dtype=np.float32))
    data = {"path": str(folder), "format": "unlabelled", "on_error": "skip", "features": str(features)}
    seen = {"data": data, "evaluation": {"split": "train"}}
    listening = load_recipe([str(recipe("scst", **seen))])
    deaf = load_recipe([str(recipe("scst", **seen, reward={"cider_d": 1.0}, listener={}))])
    for made, left in ((listening, 3), (deaf, 4)):
        trained, _, _ = training_images(made, features_at(features))
        watched, _ = watched_images(made, trained, features_at(features), "train")
        assert len(watched) == left
        options = DataOptions(split="train")
        assert load(options, made_by(made.resolved), seen_by=(None, None)).dataset.ids == watched.ids
        assert len(load(options, made_by(made.resolved), seen_by=("some/listener",)).dataset) == 3
        assert len(load(options, made_by(made.resolved)).dataset) == 4
        assert len(load(options, made_by(made.resolved), pictures=True).dataset) == 3


def test_scoring_says_which_models_look(monkeypatch, capsys):
    def stopped(options, run, *, word, seen_by, tell):
        raise UsageError(f"asked by {seen_by}")

    monkeypatch.setattr(score_captioner, "load", stopped)
    assert (
        run("score", "some/model", "--data", "photos", "--listener", "a", "--judge", "b", "--pac", "c", "--itm", "d")
        == 2
    )
    assert "asked by ['a', 'b', 'c', 'd', None, None]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric_for_best_model": "CIDEr"}, "metric_for_best_model names 'CIDEr', which compares with human captions"),
        (
            {"metric_for_best_model": "listener_R1"},
            "metric_for_best_model: 'listener_R1' is not a metric: did you mean listener_R@1",
        ),
        (
            {"metric_for_best_model": "listener_R@1", "best_floor": {"nope": 0.9}},
            "best_floor: 'nope' is not a metric: choose one of",
        ),
        ({"reward": {"cider_d": 1.0}}, "reward cider_d needs reference captions, but image '"),
        ({"evaluation": {"held_out": 6, "path": "x"}}, "evaluation.held_out takes images of the training data"),
        ({"evaluation": {"held_out": 6, "images": "x"}}, "of the training data: leave evaluation.images out"),
        ({"evaluation": {"held_out": 6, "split": "test"}}, "of the training data: leave evaluation.split out"),
        ({"evaluation": {"held_out": 600}}, "evaluation.held_out is 600, but"),
        ({"data": {"on_error": "fail"}}, "2.tar is not a whole tar archive"),
    ],
)
def test_what_cannot_be_is_one_sentence(recipe, changes, words, tmp_path, capsys):
    assert run("train", recipe("scst", **changes), "--output_dir", tmp_path / "run") == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(told) == 1
    assert words in told[0]


def test_methods_that_look_at_all_images_before_say_so(recipe, tmp_path, capsys):
    listener = str(tmp_path / "x")
    path = recipe("luo2018", own_listener={"path": listener}, objective={"max_new_tokens": 8})
    assert run("train", path) == 2
    assert "method luo2018 looks at all training images before the first step" in capsys.readouterr().err
    assert run("train", recipe("scst", reward={"likelihood": 1.0})) == 2
    assert "reward.likelihood looks at all training images before the first step" in capsys.readouterr().err
