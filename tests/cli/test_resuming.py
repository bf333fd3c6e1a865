"""The command that an interrupted training prints."""

from __future__ import annotations

import os
import shlex
import signal

import pytest

from tellapart.cli.main import main
from tellapart.cli.resuming import resuming_command, telling_how_to_resume
from tellapart.training import checkpoint
from tellapart.training.interrupt import Interrupts

LAST = "--resume_from_checkpoint last"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["r.yaml"], f"tellapart train r.yaml {LAST}"),
        (
            ["r.yaml", "--seed", "1", "--data.path", "my data"],
            f"tellapart train r.yaml --seed 1 --data.path 'my data' {LAST}",
        ),
        (["r.yaml", "--overwrite_output_dir", "--seed", "1"], f"tellapart train r.yaml --seed 1 {LAST}"),
        (["r.yaml", "--overwrite-output-dir", "true", "--seed=1"], f"tellapart train r.yaml --seed=1 {LAST}"),
        (["r.yaml", "--overwrite_output_dir=true"], f"tellapart train r.yaml {LAST}"),
        (["r.yaml", "--resume_from_checkpoint", "runs/x/checkpoint-3"], f"tellapart train r.yaml {LAST}"),
        (["--training.resume_from_checkpoint=last", "r.yaml"], f"tellapart train r.yaml {LAST}"),
    ],
)
def test_the_command_is_the_one_given_plus_the_checkpoint(argv, expected):
    assert resuming_command("train", argv) == expected
    assert shlex.split(expected)[-2:] == LAST.split()


def test_a_launcher_is_not_guessed(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert resuming_command("train", ["r.yaml"]) == f"... tellapart train r.yaml {LAST}"


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt, match=r"^$"),
        telling_how_to_resume("train", ["r.yaml"], tmp_path),
    ):
        raise KeyboardInterrupt


def test_an_interrupted_training_is_resumed_by_the_command_it_prints(materials, tmp_path, monkeypatch, capsys):
    from tellapart.training import loop

    recipe = str(materials.recipe(tmp_path, "xe", evaluation={"split": None}))
    finish = loop._Training.finish_step

    def interrupted(training, step, stop):
        finish(training, step, True)
        raise KeyboardInterrupt(f"stopped at step {step} of 2; resume_from_checkpoint=last resumes")

    monkeypatch.setattr(loop._Training, "finish_step", interrupted)
    assert main(["train", recipe, "--overwrite_output_dir"]) == 130
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == ["stopped at step 1 of 2; resume with:", f"  tellapart train {recipe} {LAST}"]
    monkeypatch.setattr(loop._Training, "finish_step", finish)
    assert main(shlex.split(said[-1])[1:]) == 0
    assert (tmp_path / "xe" / "checkpoint-2").is_dir()


def test_a_launcher_that_may_start_again_measures_the_start_model_too(materials, tmp_path, monkeypatch, capsys):
    """It names the last checkpoint from the first start on."""
    monkeypatch.setenv(checkpoint.RESTARTS, "3")
    recipe = str(materials.recipe(tmp_path, "xe"))
    assert main(["train", recipe, "--overwrite_output_dir", "--max_steps", "1"]) == 0
    expected = {path.name for path in (tmp_path / "xe" / "start").iterdir()}
    assert main(["train", recipe, *LAST.split(), "--max_steps", "1", "--output_dir", str(tmp_path / "new")]) == 0
    assert {path.name for path in (tmp_path / "new" / "start").iterdir()} == expected


@pytest.mark.parametrize("launched", [False, True])
def test_torchrun_s_patience_is_told(launched, monkeypatch, caplog):
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(KeyboardInterrupt, match="had just ended"), Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert "stopping after this step and a checkpoint" in caplog.text
    assert ("--shutdown_timeout (by default 30 s)" in caplog.text) == launched
