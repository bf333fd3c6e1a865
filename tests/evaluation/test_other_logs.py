"""Logs of TRL and verl, in every form they come in, become our curves; the doctor finds in them what it finds in ours."""

from __future__ import annotations

import json
import math

import pytest

from tellapart.cli.main import main
from tellapart.evaluation.other_logs import is_our_run, read_other_log

TRL = {
    "loss": 0.1,
    "grad_norm": 1.0,
    "reward": 0.5,
    "reward_std": 0.1,
    "rewards/clip_s/mean": 0.5,
    "rewards/clip_s/std": 0.1,
    "frac_reward_zero_std": 0.0,
    "completions/mean_length": 20.0,
    "completions/clipped_ratio": 0.0,
    "kl": 0.01,
}
VERL = {
    "critic/rewards/mean": 0.5,
    "critic/score/mean": 0.5,
    "response_length/mean": 20.0,
    "response_length/clip_ratio": 0.0,
    "actor/entropy": 1.5,
    "actor/pg_loss": 0.1,
    "actor/grad_norm": 1.0,
}


def lines_of(entries, *, inside=None):
    rows = [{"step": step, inside: logged} if inside else {"step": step, **logged} for step, logged in entries]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_trl_in_every_form(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    entries = [(1, TRL), (2, TRL | {"reward": 0.7})]
    (tmp_path / "log.jsonl").write_text(lines_of(entries))
    state = {"log_history": [{"step": step, "epoch": 0.1, **logged} for step, logged in entries]}
    checkpoint = tmp_path / "run" / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    writer = SummaryWriter(str(tmp_path / "board"))
    for step, logged in entries:
        for key, value in logged.items():
            writer.add_scalar(f"train/{key}", value, step)
        writer.add_scalar("eval/reward", 0.4, step)
    writer.close()
    for path in (tmp_path / "log.jsonl", checkpoint / "trainer_state.json", tmp_path / "run", tmp_path / "board"):
        curves = read_other_log(path)
        assert [step for step, _ in curves["reward"]] == [1, 2], path
        assert [value for _, value in curves["reward"]] == pytest.approx([0.5, 0.7])
        assert {"rewards/clip_s", "frac_reward_zero_std", "completions/clipped_ratio"} <= set(curves)
    assert "eval_reward" in read_other_log(tmp_path / "board")


def test_verl_in_its_two_forms(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    (tmp_path / "metrics.jsonl").write_text(lines_of([(0, VERL), (1, VERL)], inside="data"))
    writer = SummaryWriter(str(tmp_path / "board"))
    for key, value in VERL.items():
        writer.add_scalar(key, value, 1)
    writer.close()
    assert not is_our_run(tmp_path)
    for path in (tmp_path / "metrics.jsonl", tmp_path, tmp_path / "board"):
        curves = read_other_log(path)
        names = {"reward", "rewards/score", "completions/mean_length", "completions/clipped_ratio", "entropy", "loss"}
        assert names <= set(curves), path


def test_what_is_no_log(tmp_path):
    (tmp_path / "captions.jsonl").write_text(
        '{"image_id": 1, "caption": "a dog"}\n{"image_id": 2, "caption": "a cat"}\n'
    )
    assert read_other_log(tmp_path / "captions.jsonl") is None
    assert read_other_log(tmp_path) is None
    for name in ("deep.jsonl", "trainer_state.json"):
        (tmp_path / name).write_text("[" * 100_000 + "\n" + json.dumps({"step": 1, "reward": 0.1}))
        assert read_other_log(tmp_path / name) is None
    (tmp_path / "metrics.jsonl").write_text(lines_of([(1, {"loss": 1.0, "reward": 0.1})]))
    assert is_our_run(tmp_path)


def test_lines_are_those_of_json_and_not_of_unicode(tmp_path):
    """U+2028 in a completion ends a line for str.splitlines, and the log was taken for none."""
    entries = [{"step": step, "text": "a\u2028b", **TRL} for step in (1, 2)]
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    (tmp_path / "log.jsonl").write_text(text, encoding="utf-8")
    assert [step for step, _ in read_other_log(tmp_path / "log.jsonl")["reward"]] == [1, 2]


def test_a_log_that_grows_may_end_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(lines_of([(1, TRL), (2, TRL)]) + '{"step": 3, "rew')
    assert [step for step, _ in read_other_log(path)["reward"]] == [1, 2]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda step: {"frac_reward_zero_std": 0.95}, "no spread"),
        (lambda step: {"completions/clipped_ratio": 0.0 if step < 3 else 0.6}, "drawn unfinished"),
        (lambda step: {"reward": 0.0, "rewards/clip_s/mean": 0.0}, "zero reward"),
        (lambda step: {"completions/mean_length": 20.0 if step < 20 else 8.0}, "shorter"),
        (lambda step: {"completions/mean_length": 20.0 if step < 20 else 40.0}, "longer"),
        (lambda step: {"grad_norm": math.nan if step == 39 else 1.0}, "non finite"),
        (lambda step: {"completions/mean_length": 8.0 if step == 25 else 20.0}, None),
        (lambda step: {}, None),
    ],
)
@pytest.mark.parametrize("trainer", ["trl", "verl"])
def test_the_doctor_reads_them(tmp_path, capsys, trainer, change, found):
    """The same fault in either log; one odd step is none, and a healthy log has nothing wrong."""
    names = {
        "reward": "critic/rewards/mean",
        "completions/mean_length": "response_length/mean",
        "completions/clipped_ratio": "response_length/clip_ratio",
        "grad_norm": "actor/grad_norm",
    }
    changes = [change(step) for step in range(40)]
    if trainer == "verl":
        if found == "no spread":
            pytest.skip("verl does not log how many groups have equal rewards")
        changes = [{names[key]: value for key, value in own.items() if key in names} for own in changes]
    base, inside = (TRL, None) if trainer == "trl" else (VERL, "data")
    path = tmp_path / "log.jsonl"
    path.write_text(lines_of([(step, base | own) for step, own in enumerate(changes)], inside=inside))
    code = main(["doctor", str(path), "--strict", "true"])
    told = capsys.readouterr().out
    assert "another trainer's log" in told
    assert code == (1 if found and found != "longer" else 0)
    if found is None:
        assert "nothing is wrong in what it logs" in told
    else:
        assert f"{found}:" in told


def test_a_checkpoint_without_a_number_is_passed_over(tmp_path):
    for name, reward in (("checkpoint-best", 0.9), ("checkpoint-10", 0.2), ("checkpoint-9", 0.1)):
        (tmp_path / name).mkdir()
        state = {"log_history": [{"step": 1, "reward": reward}]}
        (tmp_path / name / "trainer_state.json").write_text(json.dumps(state))
    assert read_other_log(tmp_path)["reward"] == [(1, 0.2)]
