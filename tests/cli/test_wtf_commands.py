"""WTF-RL and its baselines from the command line: recipe in, run out."""

from __future__ import annotations

import json
import re
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from safetensors.torch import load_file

from command_recipes import load_recipe
from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.neighbours import Neighbours
from tellapart.objectives import METHODS
from tellapart.recipe.parts import check_parts
from tellapart.rewards.grammar import make_head

QUICK = {"kind": "mlp", "pretraining_steps": 2, "batch_size": 4, "max_new_tokens": 8}
RATES = {"captioner": 1e-3, "discriminator": 1e-3}
WTF_METHODS = [name for name, method in METHODS.items() if "neighbours" in method.needs]


@pytest.fixture(scope="module")
def cache():
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELLAPART_CACHE", folder)
        yield


def recipe(materials, folder, method, **changes):
    """A recipe of two steps; only the sections that the method has."""
    sections = {"discriminator": QUICK} if "discriminator" in METHODS[method].needs else {}
    rate = RATES if sections else 1e-3
    defaults = {"reward": None, "evaluation": {"split": None}, "learning_rate": rate}
    return materials.recipe(folder, method, **{**defaults, **sections, **changes})


def history(folder, method):
    return [json.loads(line) for line in (folder / method / "metrics.jsonl").read_text().splitlines()]


def test_wtf_rl_trains_captioner_and_discriminator(materials, tmp_path, cache):
    assert main(["train", str(recipe(materials, tmp_path, "wtf_rl"))]) == 0
    lines = [line for line in history(tmp_path, "wtf_rl") if "loss" in line]
    for line in lines:
        assert line["learning_rate/discriminator"] == 1e-3
        assert line["grad_norm/discriminator"] > 0
        for prefix in ("", "reference/"):
            parts = sum(line[f"{prefix}rewards/{name}"] for name in ("i2t", "t2i", "discriminator"))
            assert line[f"{prefix}reward"] == pytest.approx(parts, abs=1e-6)
    saved = tmp_path / "wtf_rl" / "checkpoint-2" / "discriminator" / "model.safetensors"
    assert load_file(saved)


@pytest.mark.parametrize("method", [name for name in WTF_METHODS if name != "wtf_rl"])
def test_its_parts_need_no_discriminator_and_no_neighbours(materials, tmp_path, cache, method):
    objective = {"max_new_tokens": 8, "neighbour_ranks": []}
    path = recipe(materials, tmp_path, method, objective=objective)
    assert main(["train", str(path), "--discriminator", "null", "--learning_rate", "1e-3"]) == 0
    [line, *_] = [line for line in history(tmp_path, method) if "loss" in line]
    assert "reference/rewards/i2t" in line
    assert ("rewards/t2i" in line) == (method != "rl_unidirectional")
    assert not any("discriminator" in name for name in line)


def test_two_turns_a_step_resume_to_the_same_weights(materials, tmp_path, cache):
    changes = {
        "objective": {"max_new_tokens": 8, "discriminator_score": "post_update", "draw": "sample"},
        "max_steps": 4,
    }
    whole = recipe(materials, tmp_path, "scst_discriminator", **changes, output_dir=str(tmp_path / "whole"))
    assert main(["train", str(whole)]) == 0
    parts = recipe(materials, tmp_path, "scst_discriminator", **changes, output_dir=str(tmp_path / "parts"))
    assert main(["train", str(parts), "--max_steps", "2"]) == 0
    assert main(["train", str(parts), "--resume_from_checkpoint", "last"]) == 0
    for part in ("captioner", "discriminator"):
        one, other = (
            load_file(tmp_path / run / "checkpoint-4" / part / "model.safetensors") for run in ("whole", "parts")
        )
        assert all((one[name] == other[name]).all() for name in one)


def test_scst_grammar_takes_a_head_from_a_folder(materials, tmp_path, cache):
    folder = tmp_path / "head"
    listener = ClipListener.from_pretrained(materials.listener)
    listener.save(folder)
    make_head(listener).save(folder)
    path = recipe(materials, tmp_path, "scst_grammar", grammar={"path": str(folder)})
    assert main(["train", str(path)]) == 0
    [line, *_] = [line for line in history(tmp_path, "scst_grammar") if "loss" in line]
    assert {"rewards/clip_s", "rewards/grammar", "reward"} <= set(line)


@pytest.mark.parametrize(
    ("changes", "flags", "sentence"),
    [
        ({"listener": None}, [], "method wtf_rl needs a listener: set listener.path"),
        ({}, ["--neighbours", "null"], "neighbours is null, but objective.neighbour_ranks asks for some"),
        (
            {},
            ["--neighbours.k", "4"],
            "objective.neighbour_ranks asks for neighbour 5, but neighbours.k is 4: raise k.",
        ),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_loaded(materials, tmp_path, changes, flags, sentence):
    read = load_recipe([str(recipe(materials, tmp_path, "wtf_rl", **changes)), *flags])
    with pytest.raises(UsageError) as caught:
        check_parts(read)
    assert str(caught.value).startswith(sentence)


def test_sections_belong_to_the_methods_that_need_them(materials, tmp_path):
    path = recipe(materials, tmp_path, "wtf_rl", objective=None)
    path.write_text(path.read_text().replace("wtf_rl", "xe", 1))
    with pytest.raises(UsageError, match=r"is not an option"):
        load_recipe([str(path)])
    path = recipe(materials, tmp_path, "wtf_rl", objective=None)
    assert load_recipe([str(path), "--objective.direction", "t2i"]).objective["direction"] == "t2i"
    with pytest.raises(UsageError, match=r"objective\.direction is not an option"):
        load_recipe([str(path), "--method", "rl_unidirectional", "--objective.direction", "both"])
    with pytest.raises(UsageError, match="batch_size is '0', but must be a whole number of at least 1"):
        load_recipe([str(path), "--discriminator.batch_size", "0"])
    with pytest.raises(UsageError, match="must be a list of whole numbers"):
        load_recipe([str(path), "--objective.neighbour_ranks", "[1,x]"])


def neighbours_file(path, ids, near):
    """A file in which every image has the same neighbours, but for itself, whose place the last image takes."""
    gallery = [*near, ids[-1]]
    rows = [[len(near) if name == own else place for place, name in enumerate(near)] for own in ids]
    Neighbours(ids, gallery, np.array(rows), np.ones((len(ids), len(near)))).save(path)
    return {"path": str(path)}


@pytest.mark.parametrize(
    ("near", "alpha", "sentence"),
    [
        (("0", "1"), 0.94, r"neighbour 5, but \S*near.parquet has 2 of each image: mine more"),
        (
            ("0", "1", "2", "9", "3"),
            0.94,
            r"near.parquet gives image '0' the neighbour '9', which is not a training image",
        ),
        (("0", "1", "2", "3", "4"), 2.0, "objective.alpha in .* is 2.0, but must be a number from 0 to 1"),
    ],
)
def test_what_cannot_be_used_is_said_before_the_pre_training(
    materials, tmp_path, cache, monkeypatch, capsys, near, alpha, sentence
):
    def never(*_, **__):
        pytest.fail("pre-trained first")

    monkeypatch.setattr("tellapart.pretraining.discriminator.pretrained_discriminator", never)
    neighbours = neighbours_file(tmp_path / "near.parquet", [str(i) for i in range(8)], near)
    objective = {"max_new_tokens": 8, "alpha": alpha}
    path = recipe(materials, tmp_path, "wtf_rl", neighbours=neighbours, objective=objective)
    assert main(["train", str(path)]) == 2
    assert re.search(sentence, " ".join(capsys.readouterr().err.split()))
