"""The rows of PSST's study: what each method is given."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tellapart.experiments.psst_rows import ANNEALED, LUO_WEIGHTS, PSST_ROWS, REINFORCE_WEIGHTS, WEIGHTS
from tellapart.experiments.world_run import ROWS, Setting, run
from tellapart.world.stages import resolve


def test_weights_span_the_papers_and_what_moves_the_world():
    # 0.005 at 128 images: a sum over the 48 of a step is 48 / 128 of theirs.
    assert WEIGHTS[0] * Setting(row="psst").images / 128 == pytest.approx(0.005, rel=1e-2)
    # One minus the weight is CIDEr's, which must not be unlearned.
    assert max(WEIGHTS) < 1
    for row in PSST_ROWS.values():
        assert row.own_listener
        assert len(row.values) in (1, 2, 4)
    # Both terms are means over tokens in these two: the ratio to CIDEr's weight is what counts.
    ratios = [weight / (1 - weight) for weight in REINFORCE_WEIGHTS]
    assert [round(ratio) for ratio in ratios] == pytest.approx(LUO_WEIGHTS, abs=2)


def test_the_annealed_temperature_falls_within_a_run():
    from tellapart.objectives.psst import GumbelAnnealed

    objective = GumbelAnnealed(torch.nn.Identity(), None, torch.nn.Identity(), **ANNEALED)
    steps = Setting(row="gumbel_annealed").steps
    temperatures = [objective.relaxation_at(step).temperature for step in range(steps)]
    assert temperatures[0] == 1.0
    assert temperatures == sorted(temperatures, reverse=True)
    assert temperatures.index(0.5) == 35 < steps


def test_what_learns_has_a_rate():
    assert PSST_ROWS["psst"].rates(3e-4) == {"captioner": 3e-4, "own_listener": 1e-4}
    assert PSST_ROWS["luo2018"].rates(3e-4) == PSST_ROWS["listener_only"].rates(3e-4) == 3e-4
    assert set(PSST_ROWS) <= set(ROWS)
    assert {f"psst, rho {rho}" for rho in ("0", "0.5", "0.75", "1")} <= set(ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["psst", "listener_only"])
def test_a_row_trains_a_copy_and_is_measured_by_it(tmp_path, row):
    knob = PSST_ROWS[row].values[0]
    before = load_file(resolve("world/listener", size="small") / "model.safetensors")
    setting = Setting(row=row, knob=knob, steps=2, images=16, eval_steps=2, size="small")
    run(setting, tmp_path, test=True, further=("own",))
    tested = json.loads((tmp_path / "done_own.json").read_text())["test"]["last"]["greedy"]
    assert {"own_listener_R@1", "own_listener_human_R@10", "listener_R@1", "judge_R@1", "perplexity"} <= set(tested)
    after = load_file(tmp_path / "checkpoint-2" / "own_listener" / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    kept = load_file(resolve("world/listener", size="small") / "model.safetensors")
    assert all(torch.equal(before[name], kept[name]) for name in before)
    assert (tmp_path / "checkpoint-2" / "captioner").is_dir() == (row == "psst")
