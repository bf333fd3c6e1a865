"""DPO, RLOO and GRPO by the command line: they train, log what they say, and fixed choices are no options."""

from __future__ import annotations

import json
import math

import pytest

from command_recipes import load_recipe
from tellapart.cli.main import main
from tellapart.errors import UsageError

LOGGED = {
    "dpo": {"margin", "accuracy", "kl", "effective_losers"},
    "rloo": {"kl"},
    "grpo": {"kl", "clip_ratio"},
}
OPTIONS = {"dpo": {"beta": 0.2}, "rloo": {"kl_coef": 0.05}, "grpo": {"kl_coef": 0.04}}


@pytest.mark.parametrize("method", LOGGED)
def test_they_train_and_log(materials, tmp_path, method):
    objective = {"max_new_tokens": 8, "num_generations": 3, **OPTIONS[method]}
    changes = {"objective": objective, "evaluation": {"split": None}, "reward": {"clip_s": 1.0}}
    assert main(["train", str(materials.recipe(tmp_path, method, **changes))]) == 0
    rows = [json.loads(line) for line in (tmp_path / method / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "loss" in row]
    assert len(steps) == 2
    for step in steps:
        assert set(step) >= LOGGED[method] | {"reward", "reward_std", "frac_reward_zero_std"}
    if method == "dpo":
        assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)  # the start model
        assert steps[0]["effective_losers"] == 1
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert steps[1]["kl"] != steps[0]["kl"]
    assert steps[0].get("clip_ratio", 0) == 0


def test_what_makes_rloo_is_no_option(materials, tmp_path):
    path = str(materials.recipe(tmp_path, "rloo", objective={"num_generations": 3}))
    assert "baseline" not in load_recipe([path]).objective
    with pytest.raises(UsageError, match="baseline"):
        load_recipe([path, "--objective.baseline", "greedy"])
