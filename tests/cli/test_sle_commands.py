"""SLE and its comparators from the command line."""

import json

import pytest

from tellapart.cli.main import main


def history(folder, method):
    lines = [json.loads(line) for line in (folder / method / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def recipe(materials, folder, method, **changes):
    defaults = {"reward": {"cider_d": 1.0}, "evaluation": {"split": None}, "learning_rate": 1e-3}
    return materials.recipe(folder, method, **{**defaults, **changes})


@pytest.mark.parametrize("method", ["sll", "sll_me", "sle"])
def test_they_train(materials, tmp_path, method):
    path = recipe(materials, tmp_path, method, objective={"max_new_tokens": 8, "num_generations": 3})
    assert main(["train", str(path)]) == 0
    [line, *_] = history(tmp_path, method)
    assert ("entropy" in line) == (method == "sll_me")
    assert ("distance" in line) == (method == "sle")
    assert line["grad_norm/captioner"] > 0


def test_every_distance_is_another(materials, tmp_path):
    found = {}
    for kind in ("bleu", "edit", "cider"):
        folder = tmp_path / kind
        folder.mkdir()
        path = recipe(materials, folder, "sle", objective={"max_new_tokens": 8, "alpha": 0.5})
        assert main(["train", str(path), "--distance.kind", kind]) == 0
        found[kind] = history(folder, "sle")[0]["distance"]
    assert 0 < found["edit"] < 1
    assert 0 < found["cider"] <= 1
    assert 0 < found["bleu"] <= 2
    assert len({round(value, 6) for value in found.values()}) == 3


def test_wrong_numbers_and_sections_are_told(materials, tmp_path, capsys):
    path = recipe(materials, tmp_path, "sle")
    assert main(["train", str(path), "--objective.alpha", "2"]) == 2
    assert "--objective.alpha is '2', but must be a number from 0 to 1" in capsys.readouterr().err
    assert main(["train", str(path), "--distance.kind", "words"]) == 2
    assert "words" in capsys.readouterr().err
    other = recipe(materials, tmp_path, "sll")
    assert main(["train", str(other), "--distance.kind", "bleu"]) == 2
    assert "distance" in capsys.readouterr().err


def test_sets_of_captions_are_measured_while_training_and_after(materials, tmp_path, capsys):
    watched = {"split": "train", "samples": 3, "max_new_tokens": 8, "limit": 4}
    path = recipe(materials, tmp_path, "sle", evaluation=watched, max_steps=1, objective={"max_new_tokens": 8})
    assert main(["train", str(path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "sle" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "eval_CIDEr" in line][-1]
    names = ("CIDEr", "Div-1", "Div-2", "mBLEU-4")
    assert {f"eval_{kind}3_{name}" for kind in ("rs", "bs") for name in names} <= set(evaluated)
    capsys.readouterr()
    assert (
        main(["score", str(tmp_path / "sle"), "--split", "train", "--limit", "4", "--json"]) == 0
    )  # as the recipe says
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    for kind in ("rs3", "bs3"):
        for name in names:
            assert metrics[f"{kind}_{name}"] == pytest.approx(evaluated[f"eval_{kind}_{name}"], abs=1e-9)
    words = ["score", str(tmp_path / "sle"), "--split", "train", "--limit", "4"]
    assert main([*words, "--samples", "0", "--json"]) == 0
    assert not any(name.startswith(("rs", "bs")) for name in json.loads(capsys.readouterr().out)["metrics"])
    assert main([*words, "--samples", "1"]) == 2
    assert "--samples is 1" in capsys.readouterr().err
