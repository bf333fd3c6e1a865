"""PSST and its baselines from the command line: recipe in, run out."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from command_recipes import load_recipe
from listeners.tiny_listeners import clip_parts
from pictures import CAPTIONS
from tellapart.cli.main import main
from tellapart.listeners.clip import ClipListener
from tellapart.objectives import METHODS
from tiny_models import word_tokenizer

JOINT = ["psst", "gumbel_annealed", "reinforce_joint", "luo2018", "listener_only"]
LEARNING = {"luo2018": ["captioner"], "listener_only": ["own_listener"]}
BOTH = ["captioner", "own_listener"]
RATES = {"captioner": 1e-3, "own_listener": 1e-3}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A CLIP that has the captioner's words."""
    folder = tmp_path_factory.mktemp("own") / "listener"
    model, image_processor, tokenizer = clip_parts(words=word_tokenizer(CAPTIONS, 64), eos=3)
    ClipListener.from_parts(model, image_processor, tokenizer, prefix="").save(folder)
    return folder


def recipe(materials, folder, method, own, **changes):
    """A recipe of two steps; the frozen listener of the evaluation is another one."""
    rates = {name: RATES[name] for name in LEARNING.get(method, BOTH)}
    reward = {"cider_d": 1.0} if METHODS[method].needs_reward else None
    section = {"own_listener": {"path": str(own)}, "learning_rate": rates, "reward": reward}
    return materials.recipe(folder, method, **{**section, **changes})


def history(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def said(capsys, argv):
    assert main(argv) == 2
    return capsys.readouterr().err.strip().removeprefix("error: ")


@pytest.mark.parametrize("method", JOINT)
def test_every_method_trains_what_it_should_and_is_watched_by_its_own_listener(materials, tmp_path, own, method):
    assert main(["train", str(recipe(materials, tmp_path, method, own))]) == 0
    lines, learns = history(tmp_path / method), LEARNING.get(method, BOTH)
    trained = [line for line in lines if "loss" in line]
    assert [sorted(key for key in line if key.startswith("grad_norm/")) for line in trained] == [
        sorted(f"grad_norm/{part}" for part in learns)
    ] * 2
    watched = [line for line in lines if "eval_CIDEr" in line]
    for line in watched:
        for k in (1, 5, 10):
            assert 0 <= line[f"eval_own_listener_R@{k}"] <= 100
            assert 0 <= line[f"eval_own_listener_human_R@{k}"] <= 100
    for part in BOTH:
        assert (tmp_path / method / "checkpoint-2" / part).is_dir() == (part in learns)
    # The frozen listener and the one that was copied stay as they are.
    assert watched[0]["eval_listener_i2t_R@1"] is not None
    before = load_file(own / "model.safetensors")
    if "own_listener" in learns:
        after = load_file(tmp_path / method / "checkpoint-2" / "own_listener" / "model.safetensors")
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved
        assert not any(name.startswith(("vision_model", "visual_projection", "logit_scale")) for name in moved)


@pytest.mark.parametrize("method", ["psst", "reinforce_joint"])
def test_a_run_cut_in_two_ends_with_the_same_weights(materials, tmp_path, own, method):
    changes = {"max_steps": 4, "evaluation": {"split": None}}
    whole = recipe(materials, tmp_path, method, own, **changes, output_dir=str(tmp_path / "whole"))
    assert main(["train", str(whole)]) == 0
    parts = recipe(materials, tmp_path, method, own, **changes, output_dir=str(tmp_path / "parts"))
    # Cut at an odd step: the listener's turn comes next.
    assert main(["train", str(parts), "--max_steps", "1"]) == 0
    assert main(["train", str(parts), "--resume_from_checkpoint", "last"]) == 0
    for part in BOTH:
        ours, theirs = (
            load_file(tmp_path / name / "checkpoint-4" / part / "model.safetensors") for name in ("whole", "parts")
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    norms = [line for line in history(tmp_path / "whole") if "loss" in line]
    if method == "reinforce_joint":
        assert [line["grad_norm/captioner"] > 0 for line in norms] == [True, False, True, False]
        assert [line["grad_norm/own_listener"] > 0 for line in norms] == [False, True, False, True]


@pytest.mark.parametrize("method", ["psst", "listener_only"])
def test_score_run_asks_the_listener_that_learned(materials, tmp_path, own, method):
    path = recipe(materials, tmp_path, method, own, learning_rate=dict.fromkeys(LEARNING.get(method, BOTH), 0.05))
    assert main(["train", str(path)]) == 0
    run = tmp_path / method
    last = [line for line in history(run) if "eval_CIDEr" in line][-1]
    assert main(["score", str(run)]) == 0
    [found] = [json.loads(path.read_text()) for path in (run / "eval").glob("*/metrics.json")]
    metrics = found.get("metrics", found)
    keys = [key for key in last if key.startswith("eval_own_listener")]
    assert len(keys) == 6
    for key in keys:
        assert metrics[key.removeprefix("eval_")] == pytest.approx(last[key])


def test_an_image_side_that_learns_sees_pictures(materials, tmp_path, own):
    path = recipe(materials, tmp_path, "psst", own, own_listener={"path": str(own), "train": "all"})
    assert main(["train", str(path)]) == 0
    before = load_file(own / "model.safetensors")
    after = load_file(tmp_path / "psst" / "checkpoint-2" / "own_listener" / "model.safetensors")
    moved = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved >= {"vision_model", "visual_projection", "text_model", "text_projection"}
    assert "eval_own_listener_R@1" in history(tmp_path / "psst")[-1]


def test_other_words_are_for_methods_that_read_texts(materials, tmp_path, capsys):
    strange = materials.listener  # knows other words than the captioner
    told = said(capsys, ["train", str(recipe(materials, tmp_path, "psst", strange))])
    assert re.search(r"does not have .* of the captioner's .* words", told)
    assert "reinforce_joint, luo2018" in told
    for method in ("reinforce_joint", "luo2018"):
        changes = {"evaluation": {"split": None}, "output_dir": str(tmp_path / f"{method}-strange")}
        assert main(["train", str(recipe(materials, tmp_path, method, strange, **changes))]) == 0


def test_what_cannot_be_is_refused_in_a_sentence(materials, tmp_path, own, capsys):
    path = str(recipe(materials, tmp_path, "psst", own))
    assert said(capsys, ["train", path, "--own_listener.path", "null"]) == (
        "method psst needs a listener of the captioner's own: set own_listener.path, such as world/listener."
    )
    assert "gradient_accumulation_steps=2 would change it" in said(
        capsys, ["train", path, "--gradient_accumulation_steps", "2", "--evaluation.split", "null"]
    )
    told = said(capsys, ["train", path, "--per_device_train_batch_size", "1", "--evaluation.split", "null"])
    assert "per_device_train_batch_size" in told
    luo = str(recipe(materials, tmp_path, "luo2018", own))
    assert "leaves its listener as it is" in said(capsys, ["train", luo, "--own_listener.train", "all"])


def test_a_captioner_that_cannot_read_mixtures_is_told_before_training(materials, tmp_path, own, capsys, monkeypatch):
    from tellapart.captioners.base import Captioner
    from tellapart.captioners.huggingface import HuggingFaceCaptioner

    monkeypatch.setattr(HuggingFaceCaptioner, "unroll", Captioner.unroll)
    told = said(capsys, ["train", str(recipe(materials, tmp_path, "psst", own)), "--dry_run"])
    assert "cannot read mixtures of words" in told
    assert "reinforce_joint" in told


def test_recipes_of_other_methods_have_no_own_listener(materials, tmp_path):
    assert "own_listener" not in load_recipe([str(materials.recipe(tmp_path, "scst"))]).resolved


def test_the_papers_own_models_a_recurrent_captioner_and_a_vse_on_features(materials, tmp_path, capsys):
    """Att2in2, a VSE with its words, then both together; no picture is opened."""
    features, data = tmp_path / "features", str(materials.data)
    features.mkdir()
    for i in range(14):
        np.save(features / f"{i}.npy", np.random.default_rng(i).normal(size=(3, 8)).astype(np.float32))
    common = ["--data.path", data, "--data.features", str(features), "--max_steps", "2", "--logging_steps", "1"]
    common += ["--per_device_train_batch_size", "4", "--learning_rate", "1e-3"]
    speaker, vse, joint = (str(tmp_path / name) for name in ("speaker", "vse", "joint"))
    new = json.dumps({"hidden_size": 8, "min_count": 1})
    start = ["--method", "xe", "--captioner.model_name_or_path", "new/att2in2", "--captioner.new", new]
    assert main(["train", *start, "--evaluation.split", "null", "--output_dir", speaker, *common]) == 0
    small = json.dumps({"word_size": 4, "hidden_size": 8})
    listener = [
        "--loss",
        "hinge",
        "--listener.path",
        "new/vse",
        "--listener.vocabulary",
        speaker,
        "--listener.new",
        small,
    ]
    assert main(["train-listener", *listener, "--output_dir", vse, *common]) == 0
    both = ["--method", "psst", "--captioner.model_name_or_path", speaker, "--own_listener.path", vse]
    both += ["--reward.cider_d", "1", "--objective.max_new_tokens", "8", "--output_dir", joint]
    assert "own_listener.train is for a CLIP" in said(capsys, ["train", *both, *common, "--own_listener.train", "all"])
    assert main(["train", *both, *common]) == 0
    before, after = (
        load_file(next(folder.glob("model.safetensors")))
        for folder in (tmp_path / "vse" / "listener", tmp_path / "joint" / "checkpoint-2" / "own_listener")
    )
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert "eval_own_listener_R@1" in history(tmp_path / "joint")[-1]
    assert main(["score", joint]) == 0
