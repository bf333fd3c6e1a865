"""What stands in a checkpoint's state may have been written by anybody: it is held against its kinds before it is used."""

from __future__ import annotations

import json

import pytest

from tellapart.training.config import TrainConfig
from tellapart.training.devices import Devices
from tellapart.training.logs import RunLog, read_lines
from tellapart.training.state import State, state_of

GOOD = {
    "step": 4,
    "epoch": 2.0,
    "effective_batch_size": 4,
    "world_size": 1,
    "data": "7743",
    "selection": {"start": {"CIDEr": 0.1}, "best": {"step": 0, "metric": "CIDEr", "value": 0.0}},
    "config": {"seed": 0},
    "doctor": {
        "first": {"reward": [1, 1.5]},
        "spoken": {},
        "last": {"reward": 1},
        "rows": {"longer": 2},
        "told": ["longer"],
    },
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"selection": {}, "doctor": {}},
        {"ended": "hacked"},
        {"selection": {"start": {}, "best": None}},
        {"epoch": 2},
    ],
)
def test_what_runs_write_is_read(change):
    assert vars(state_of(json.loads(json.dumps(GOOD | change)))) == vars(State(**(GOOD | change)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"doctor": -1}, "doctor is of a wrong kind"),
        ({"doctor": {"first": {"reward": 1}}}, "doctor"),
        ({"doctor": GOOD["doctor"] | {"told": "longer"}}, "doctor"),
        ({"selection": {"start": {}}}, "selection"),
        ({"selection": {"start": {}, "best": {"step": 1}}}, "selection"),
        ({"selection": {"start": {"CIDEr": "x"}, "best": None}}, "selection"),
        ({"step": -1}, "step"),
        ({"step": True}, "step"),
        ({"step": 10**30}, "step"),
        ({"epoch": float("nan")}, "epoch"),
        ({"config": {}}, "config"),
        ({"data": None}, "data"),
        ({"more": 1}, "not the state of a run"),
    ],
)
def test_other_values_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        state_of(GOOD | change)


def test_a_state_must_be_whole():
    with pytest.raises(ValueError, match="a value is missing"):
        state_of({name: value for name, value in GOOD.items() if name != "step"})
    with pytest.raises(ValueError, match="not the state of a run"):
        state_of([GOOD])


def test_lines_of_a_log_that_no_run_writes_are_left_out(tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1, "loss": 0.5}\n5\n{"loss": 1}\n{"step": "2"}\n' + "[" * 100_000 + '\n{"step": 2, "lo')
    assert read_lines(log) == [{"step": 1, "loss": 0.5}, {"loss": 1}, {"step": "2"}]
    config = TrainConfig(output_dir=tmp_path, max_steps=2)
    assert RunLog(config, Devices(config), 1).history == [{"step": 1, "loss": 0.5}]
    assert read_lines(tmp_path / "none.jsonl") == []
