"""The scripts of docs/how-to/trainers.md run, with a stand-in for the trainers that calls rewards as they do."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from listeners.tiny_listeners import clip_parts
from pictures import images
from tellapart.listeners.clip import ClipListener
from tiny.language_models import saved

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "trainers.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


SAID = ["a red dog", "the blue cat", "two big dog runs", "a bus", "a cat on the sofa"]
"""Captions in words that the tiny listener knows."""


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A folder with photos and tiny models under the names of the page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number, picture in enumerate(images(3)):
        picture.save(tmp_path / "photos" / f"{number}.png")
    ClipListener.from_parts(*clip_parts()).save(tmp_path / "openai" / "clip-vit-base-patch32")
    (tmp_path / "openai-community").mkdir()
    saved(tmp_path / "openai-community" / "gpt2")
    return tmp_path


class Trainer:
    """Calls reward functions as ``trl.GRPOTrainer`` does: by name, with a column per field of the data."""

    def __init__(self, *, model, reward_funcs, args, train_dataset):
        self.functions, self.args, self.data = reward_funcs, args, train_dataset
        assert len(args["reward_weights"]) == len(reward_funcs)

    def train(self):
        count = self.args["num_generations"]
        inputs = [row for row in self.data for _ in range(count)]
        completions = [[{"role": "assistant", "content": SAID[place % len(SAID)]}] for place in range(len(inputs))]
        columns = {key: [row[key] for row in inputs] for key in inputs[0] if key != "prompt"}
        prompts = [row["prompt"] for row in inputs]
        self.rewards = {
            function.__name__: function(
                prompts=prompts,
                completions=completions,
                completion_ids=[[1]] * len(inputs),
                trainer_state=None,
                **columns,
            )
            for function in self.functions
        }


def test_the_script_for_trl(at_home, monkeypatch):
    module = ModuleType("trl")
    module.GRPOConfig, module.GRPOTrainer = dict, Trainer
    monkeypatch.setitem(sys.modules, "trl", module)
    names: dict = {}
    exec(compile(SCRIPTS[0], "docs/how-to/trainers.md", "exec"), names)
    rewards = names["trainer"].rewards
    assert set(rewards) == {"clip_s", "language_model"}
    assert all(len(values) == 24 and all(isinstance(value, float) for value in values) for values in rewards.values())
    assert len(set(rewards["clip_s"])) > 3


def test_the_script_for_verl(at_home):
    names: dict = {}
    exec(compile(SCRIPTS[1], "docs/how-to/trainers.md", "exec"), names)
    info = {"image": str(at_home / "photos" / "0.png"), "references": ["a red car"]}
    assert isinstance(names["compute_score"]("photos", SAID[0], "", info), float)
    assert len(SCRIPTS) == 2
