"""The doctor in the loop: what is logged and said, and how a run ends. Evaluations are scripted, training is real."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from training_toys import Toy, digest, toy_config, toy_data

from tellapart.errors import UsageError
from tellapart.evaluation.alarms import find_alarms
from tellapart.evaluation.report.runs import read_curves
from tellapart.training.checkpoint import NonFiniteError
from tellapart.training.doctor import refuse
from tellapart.training.loop import train
from tellapart.types import StepOutput

SCRIPT = (100.0, 90.0, 95.0, 40.0, 30.0, 20.0, 10.0)
"""``grammatical`` at steps 0 to 6; below 90 the captions are broken."""

ENDS = {"eval_steps": 1, "metric_for_best_model": "score"}
SCORES = (1.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0)
"""The metric that selects: best at step 2 among the evaluations that were not hacked, at 3 among all."""


def scripted(start=0):
    """An evaluation that reads its metrics from ``SCRIPT``, as if called from step ``start`` on."""
    rows = iter([{"grammatical": g, "score": s} for g, s in zip(SCRIPT, SCORES, strict=True)][start:])
    return lambda objective: dict(next(rows))


def run(folder, *, start=0, **options):
    objective = Toy()
    return objective, train(objective, toy_data(), toy_config(folder, **{**ENDS, **options}), evaluate=scripted(start))


def without_seconds(history):
    return [{key: value for key, value in line.items() if not key.startswith("seconds/")} for line in history]


def doctors(history):
    """Step -> what the doctor logged beside its evaluation."""
    lines = [line for line in history if "eval_score" in line]
    return {line["step"]: {k.removeprefix("doctor/"): v for k, v in line.items() if "doctor/" in k} for line in lines}


def test_verdicts_are_counted_in_the_log_and_said_once(tmp_path, caplog):
    """Grammar breaks at step 3; the toy's reward is above its first there or not, which decides about ``hacking``."""
    with caplog.at_level(logging.WARNING):
        _, done = run(tmp_path)
    rewards = [line["reward"] for line in done.history if "reward" in line]
    logged = doctors(done.history)
    assert [logged[step]["verdicts"] for step in (0, 1, 2)] == [0, 0, 0]
    assert [logged[step].get("grammar") for step in range(7)] == [None, None, None, 1, 2, 3, 4]
    assert [logged[step].get("hacked") for step in range(7)] == [None, None, None, 1, 2, 3, 4]
    up = [reward > rewards[0] for reward in rewards[2:]]
    assert [logged[step].get("hacking", 0) > 0 for step in range(3, 7)] == up
    said = [record.message for record in caplog.records if "grammar:" in record.message]
    assert len(said) == 1
    assert said[0].startswith("doctor, step 3, grammar: The reward does not see grammar: lower learning_rate, or ")
    assert said[0].endswith("(eval_grammatical 40; 100 at step 0; limit 90).")
    assert (done.step, done.ended) == (6, "")


def test_stop_ends_after_the_patience_with_a_checkpoint(tmp_path):
    _, done = run(tmp_path, on_hack="stop")
    assert done.step == 4
    assert done.ended.startswith("ended at step 4, hacked for 2 evaluations in a row (grammar")
    assert "with the weights of that step" in done.ended
    assert done.checkpoint.is_dir()
    assert not (tmp_path / "checkpoint-5").exists()
    assert json.loads((done.checkpoint / "trainer_state.json").read_text())["ended"] == done.ended
    assert run(tmp_path / "patient", on_hack="stop", hack_patience=3)[1].step == 5


def test_what_was_hacked_is_not_selected_where_the_run_is_to_end(tmp_path):
    assert run(tmp_path / "warn")[1].best.step == 3
    assert run(tmp_path / "stop", on_hack="stop")[1].best.step == 2


def test_rollback_ends_with_the_weights_and_the_optimiser_of_the_best(tmp_path):
    at_step_2, _ = run(tmp_path / "short", max_steps=2)
    objective, done = run(tmp_path / "whole", on_hack="rollback")
    assert (done.step, done.best.step) == (4, 2)
    assert "with the weights of step 2, the best by score" in done.ended
    assert digest(objective) == digest(at_step_2)
    last, best = (torch.load(tmp_path / "whole" / name / "optimizer.pt") for name in ("checkpoint-4", "best"))
    assert last.keys() == best.keys()
    for name, state in best.items():
        assert all(torch.equal(state[key], last[name][key]) for key in state)
    assert done.history[-1]["doctor/rolled_back_to"] == 2.0


def test_going_back_to_the_start_takes_the_optimiser_back_too(tmp_path):
    """At step 0 AdamW knows nothing, so afterwards it must not either."""
    objective = Toy()
    values = iter([100.0, 20.0, 10.0])
    options = {**ENDS, "metric_for_best_model": "grammatical", "on_hack": "rollback"}
    done = train(
        objective, toy_data(), toy_config(tmp_path, **options), evaluate=lambda _: {"grammatical": next(values)}
    )
    assert (done.step, done.best.step) == (2, 0)
    assert digest(objective) == digest(Toy())
    assert torch.load(done.checkpoint / "optimizer.pt") == {}


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_resumed_run_ends_where_the_whole_one_did(tmp_path, kept):
    """Also where it was stopped between the two evaluations that decide."""
    whole, done = run(tmp_path / "whole", on_hack="rollback", save_steps=1)
    folder = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", folder)
    for step in range(kept + 1, 5):
        shutil.rmtree(folder / f"checkpoint-{step}")
    if kept == 1:  # the best of then
        shutil.rmtree(folder / "best")
        shutil.copytree(folder / "checkpoint-1", folder / "best")
    again, resumed = run(folder, start=kept + 1, on_hack="rollback", resume_from_checkpoint="last")
    assert (resumed.step, resumed.ended, resumed.best) == (done.step, done.ended, done.best)
    assert digest(again) == digest(whole)
    assert without_seconds(resumed.history) == without_seconds(done.history)


def test_an_ended_run_has_nothing_left_to_do_unless_it_may_go_on(tmp_path):
    ended, done = run(tmp_path, on_hack="stop")
    again, resumed = run(tmp_path, start=5, on_hack="stop", resume_from_checkpoint="last")
    assert (resumed.step, resumed.ended) == (4, done.ended)
    assert digest(again) == digest(ended)
    with pytest.warns(UserWarning, match="on_hack was 'stop' and is now 'warn'"):
        on, finished = run(tmp_path, start=5, resume_from_checkpoint="last")
    assert (finished.step, finished.ended) == (6, "")
    assert digest(on) == digest(run(tmp_path / "never", on_hack="warn")[0])


def test_checkpoints_from_before_the_doctor_are_judged_by_their_log(tmp_path):
    run(tmp_path, max_steps=3)
    state = tmp_path / "checkpoint-3" / "trainer_state.json"
    told = json.loads(state.read_text())
    del told["doctor"], told["ended"]
    state.write_text(json.dumps(told))
    _, done = run(tmp_path, start=4, on_hack="stop", resume_from_checkpoint="last")
    assert (done.step, doctors(done.history)[4]["hacked"]) == (4, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_hack": "explode"}, "on_hack='explode' must be one of warn, stop, rollback"),
        ({"on_hack": "stop"}, "on_hack='stop' acts on evaluations during training: set eval_steps"),
        ({"on_hack": "rollback", "eval_steps": 1}, "on_hack='rollback' goes back to the best checkpoint"),
        ({"hack_patience": 0}, "hack_patience=0 must be at least 1"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, options, said):
    with pytest.raises(UsageError, match=said):
        toy_config(tmp_path, **options)


class Breaks(Toy):
    def losses(self, experience):
        for piece in super().losses(experience):
            loss = piece.loss * float("nan") if experience.step == 2 else piece.loss
            yield StepOutput(loss, piece.weight, piece.logs)


def test_a_step_that_is_not_finite_is_a_verdict_of_the_log(tmp_path):
    with pytest.raises(NonFiniteError, match="step 3 is not finite"):
        train(Breaks(), toy_data(), toy_config(tmp_path))
    *_, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (last["step"], last["loss"], last["doctor/non_finite"]) == (3, None, 1.0)
    (alarm,) = find_alarms(read_curves(tmp_path / "metrics.jsonl"))
    assert (alarm.rule, alarm.step) == ("non finite", 3)
    assert "lower learning_rate or turn bf16 off" in alarm.text


def test_a_step_with_many_figures_is_refused_in_a_short_sentence(tmp_path):
    figures = {f"rewards/clip_s of {n}": 1.1753 for n in range(9)} | {
        "loss": float("nan"),
        "grad_norm/captioner": float("nan"),
    }
    said = str(refuse(5, figures, ["a"], Path("/a/folder/of/sixty/characters/in/a/home/of/somebody/run"), writes=False))
    assert "(loss nan, grad_norm/captioner nan, rewards/clip_s of 0 1.175)" in said
    assert len(said) <= 300


class Poisoned(Toy):
    """A weight that no gradient reaches is broken, so that the loss stays finite."""

    def collect(self, batch, step):
        with torch.no_grad():
            self.critic.weight.fill_(float("inf"))
        return super().collect(batch, step)

    def losses(self, experience):
        yield next(super().losses(experience))


def test_weights_that_are_not_finite_are_one_too_and_never_saved(tmp_path):
    with pytest.raises(NonFiniteError, match=r"critic\.weight holds values that are not finite"):
        train(Poisoned(), toy_data(), toy_config(tmp_path, max_steps=2))
    assert not (tmp_path / "checkpoint-2").exists()
    assert [alarm.rule for alarm in find_alarms(read_curves(tmp_path / "metrics.jsonl"))] == ["non finite"]
