"""Training on given preferences by the command line, and several updates per rollout."""

from __future__ import annotations

import json
import math

import pytest

from tellapart.cli.main import main

CAPTIONS = ("a red dog", "a blue cat")


def rows_of(folder) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row]


@pytest.fixture
def pairs(tmp_path):
    """Two pairs of each of the first five training images, by file name, and two of an image that is not there."""
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"images": [f"{place:02}.png"], "prompt": "", "chosen": f"{text} on a mat", "rejected": f"{text} in a park"}
        for place in (*range(5), 99)
        for text in CAPTIONS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("method", ["offline_dpo", "ipo", "kto"])
def test_they_learn_what_is_preferred(materials, pairs, tmp_path, method, capsys):
    """From the start model, whose margin is 0, the margin of the same pairs grows; images without pairs are left out."""
    changes = {"preferences": {"path": str(pairs)}, "evaluation": {"split": None}, "listener": None, "reward": None}
    changes |= {"objective": {"beta": 0.2, "pairs_per_image": None}, "max_steps": 6, "per_device_train_batch_size": 5}
    assert main(["train", str(materials.recipe(tmp_path, method, **changes))]) == 0
    said = capsys.readouterr().err
    assert "5 of 8 training images have preferences" in said
    assert "2 of 12 preferences are not about training images and are left out" in said
    steps = rows_of(tmp_path / method)
    start = {"offline_dpo": math.log(2), "ipo": (1 / 0.4) ** 2}
    assert steps[0]["margin"] == pytest.approx(0, abs=1e-4)
    if method in start:
        assert steps[0]["loss"] == pytest.approx(start[method], abs=1e-3)
    assert steps[-1]["margin"] > 0.05
    assert steps[-1]["loss"] < steps[0]["loss"]


def test_other_preferences_are_another_run(materials, pairs, tmp_path, capsys):
    changes = {"preferences": {"path": str(pairs)}, "evaluation": {"split": None}, "listener": None, "reward": None}
    recipe = str(materials.recipe(tmp_path, "offline_dpo", objective=None, **changes))
    assert main(["train", recipe]) == 0
    again = ["train", recipe, "--max_steps", "3", "--resume_from_checkpoint", "last"]
    written = pairs.read_text()
    pairs.write_text(written.replace("mat", "rug"))
    assert main(again) == 2
    assert "was written with another data (ids, references, contexts, preferences" in capsys.readouterr().err
    pairs.write_text(written)
    assert main(again) == 0


def test_what_is_missing_is_one_sentence(materials, pairs, tmp_path, capsys):
    changes = {"evaluation": {"split": None}, "listener": None, "reward": None, "objective": None}
    assert main(["train", str(materials.recipe(tmp_path, "ipo", **changes))]) == 2
    assert "preferences" in capsys.readouterr().err
    (tmp_path / "others.jsonl").write_text(json.dumps({"image_id": "x", "chosen": "a", "rejected": "b"}))
    changes["preferences"] = {"path": str(tmp_path / "others.jsonl")}
    assert main(["train", str(materials.recipe(tmp_path, "ipo", **changes))]) == 2
    assert "none of the 1 images with preferences" in capsys.readouterr().err


def test_several_updates_per_rollout(materials, tmp_path):
    """The first update is that of a single iteration; further ones can be clipped, and a step logs means over its updates."""
    common = {"max_new_tokens": 8, "num_generations": 3, "kl_coef": 0.0}
    found = {}
    for count, clip in ((1, 0.2), (3, 1e-6), (3, 10.0)):
        changes = {"objective": common | {"num_iterations": count, "clip_eps": clip}, "evaluation": {"split": None}}
        changes |= {"reward": {"clip_s": 1.0}, "max_steps": 1, "learning_rate": 1e-5}
        folder = tmp_path / f"{count} {clip}"
        folder.mkdir()
        assert main(["train", str(materials.recipe(folder, "grpo", **changes))]) == 0
        (found[count, clip],) = rows_of(folder / "grpo")
    once, clipped, free = found.values()
    assert once["reward"] == clipped["reward"] == free["reward"]
    assert once["clip_ratio"] == free["clip_ratio"] == 0 < clipped["clip_ratio"]
    assert once["loss"] == pytest.approx(0, abs=1e-5)  # advantages of a group sum to 0
    assert free["loss"] < -1e-6  # the surrogate grows from update to update
    assert free["grad_norm/captioner"] == pytest.approx(once["grad_norm/captioner"], rel=0.2)
    assert free["learning_rate/captioner"] == once["learning_rate/captioner"]
