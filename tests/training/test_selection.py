import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from training_toys import Toy, digest, toy_config, toy_data

from tellapart.errors import UsageError
from tellapart.training.loop import train
from tellapart.training.selection import Selection


def trained(folder, **options):
    objective = Toy()
    run = train(objective, toy_data(), toy_config(folder, **options))
    return objective, run


def test_evaluating_changes_no_weight(tmp_path):
    def evaluate(objective):
        torch.rand(7), np.random.rand(3)
        assert not torch.is_grad_enabled()
        objective.train()
        return {"noise": torch.rand(1).item()}

    never, _ = trained(tmp_path / "never", dropout=True)
    objective = Toy()
    run = train(objective, toy_data(), toy_config(tmp_path / "often", eval_steps=1, dropout=True), evaluate=evaluate)
    assert digest(objective) == digest(never)
    assert [line["step"] for line in run.evaluations] == list(range(7))
    assert len({line["eval_noise"] for line in run.evaluations}) == 1, "every evaluation draws the same numbers"


def scripted(values):
    """An evaluation that reads its metrics from a list."""
    remaining = iter(values)
    return lambda objective: dict(next(remaining))


def test_best_is_the_highest_above_the_floor(tmp_path):
    values = [
        {"R@1": 0.1, "CIDEr": 1.0},
        {"R@1": 0.4, "CIDEr": 0.6},
        {"R@1": 0.3, "CIDEr": 0.9},
        {"R@1": 0.9, "CIDEr": 0.59},
        {"R@1": math.nan, "CIDEr": 1.0},
        {"R@1": 0.4, "CIDEr": 0.9},
        {"R@1": 0.2, "CIDEr": 0.9},
    ]
    at_step = {}

    script = scripted(values)

    def evaluate(objective):
        at_step[len(at_step)] = {k: v.clone() for k, v in objective.captioner.state_dict().items()}
        return script(objective)

    options = {"eval_steps": 1, "metric_for_best_model": "eval_R@1", "best_floor": {"CIDEr": 0.6}}
    run = train(Toy(), toy_data(), toy_config(tmp_path, **options), evaluate=evaluate)
    assert run.best is not None
    assert (run.best.step, run.best.value, run.best.metric) == (1, 0.4, "R@1")
    assert run.selected == tmp_path / "best"
    assert replace(run, best=None).selected == tmp_path / f"checkpoint-{run.step}"
    from safetensors.torch import load_file

    kept = load_file(tmp_path / "best" / "captioner" / "model.safetensors")
    assert all(torch.equal(kept[name], at_step[1][name]) for name in kept)
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    assert state["selection"]["best"] == {"step": 1, "metric": "R@1", "value": 0.4}
    assert state["selection"]["start"] == {"CIDEr": 1.0}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["eval_R@1"] for line in lines if "eval_R@1" in line][4] is None


def test_lower_may_be_better(tmp_path):
    values = [{"nll": value} for value in (3.0, 2.0, 2.5)]
    run = train(
        Toy(),
        toy_data(),
        toy_config(tmp_path, max_steps=2, eval_steps=1, metric_for_best_model="nll", greater_is_better=False),
        evaluate=scripted(values),
    )
    assert run.best is not None
    assert run.best.step == 1


def test_a_missing_metric_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"metric_for_best_model names 'CIDer', but the evaluation gives CIDEr"):
        train(
            Toy(), toy_data(), toy_config(tmp_path, metric_for_best_model="CIDer"), evaluate=scripted([{"CIDEr": 1.0}])
        )


FLOORED = {"metric_for_best_model": "m", "best_floor": {"kept": 0.5}}


def test_a_metric_that_one_evaluation_lacks_does_not_cost_the_run(tmp_path):
    values = [{"m": 1.0, "kept": 0.5}, {"m": 3.0}, {"kept": 0.5}, {"m": 2.0, "kept": 0.5}]
    run = train(
        Toy(), toy_data(), toy_config(tmp_path, max_steps=3, eval_steps=1, **FLOORED), evaluate=scripted(values)
    )
    assert run.best is not None
    assert (run.best.step, run.best.value) == (3, 2.0)
    again = Selection(toy_config(tmp_path, **FLOORED), {"start": {"kept": 0.5}, "best": vars(run.best)})
    assert not again.offer(4, {"other": 1.0})
    misspelt = Selection(toy_config(tmp_path, metric_for_best_model="n"), {"start": {}, "best": vars(run.best)})
    with pytest.raises(UsageError, match="metric_for_best_model names 'n', but the evaluation gives m"):
        misspelt.offer(4, {"m": 3.0})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-2.0, r"asks for 0\.5 of 'kept', which is -2 at step 0, and such a share of a negative number is above it"),
        (math.nan, "names 'kept', which is nan at step 0, so that no share of it can be kept"),
        (math.inf, "names 'kept', which is inf at step 0"),
    ],
)
def test_a_start_of_which_no_share_is_a_floor_is_refused(tmp_path, value, message):
    selection = Selection(toy_config(tmp_path, **FLOORED))
    with pytest.raises(UsageError, match=f"best_floor {message}"):
        selection.offer(0, {"m": 1.0, "kept": value})


def test_a_resumed_run_selects_by_the_metric_it_now_has(tmp_path):
    before = Selection(toy_config(tmp_path, metric_for_best_model="R@1"))
    assert before.offer(0, {"R@1": 30.0, "CIDEr": 0.5})
    same = Selection(toy_config(tmp_path, metric_for_best_model="R@1"), before.state())
    assert not same.offer(5, {"R@1": 29.0, "CIDEr": 0.9})
    other = Selection(toy_config(tmp_path, metric_for_best_model="CIDEr"), before.state())
    assert other.offer(5, {"R@1": 29.0, "CIDEr": 0.9}), "30 was a recall, not a CIDEr to beat"
    options = {"metric_for_best_model": "R@1", "best_floor": {"CIDEr": 0.6}}
    floored = Selection(toy_config(tmp_path, **options), before.state())
    with pytest.raises(UsageError, match="best_floor names 'CIDEr', of which this resumed run kept no value"):
        floored.offer(5, {"R@1": 31.0, "CIDEr": 0.9})
