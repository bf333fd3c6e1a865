"""The command that an interrupted training prints."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal

import pytest
from safetensors.torch import load_file, save_file

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


def steps_of(run):
    """Step -> metrics of its evaluations."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if "eval_CIDEr" in line}


def best_of(run):
    return json.loads((run / "trainer_state.json").read_text())["selection"]["best"]


def test_models_and_plugins_that_changed_are_named(materials, tmp_path, capsys):
    """A run went on with another reference model and another reward, without a word."""
    captioner, listener = (
        shutil.copytree(materials.captioner, tmp_path / "c"),
        shutil.copytree(materials.listener, tmp_path / "l"),
    )
    plugin = tmp_path / "mine.py"
    plugin.write_text("from tellapart.rewards.reference import CiderD\nREWARDS = {'mine': CiderD}\n")
    recipe = str(materials.recipe(tmp_path, "dico", evaluation={"split": None}))
    words = ["train", recipe, "--captioner.model_name_or_path", str(captioner), "--listener.path", str(listener)]
    words += ["--plugin", str(plugin)]
    assert main([*words, "--max_steps", "1"]) == 0
    kept = json.loads((tmp_path / "dico" / "trainer_state.json").read_text())["contents"]
    assert {"captioner.model_name_or_path", "listener.path", "the plugin mine.py", "what dico computes"} <= kept.keys()
    capsys.readouterr()
    assert main([*words, "--max_steps", "2", *LAST.split()]) == 0
    assert "has changed" not in capsys.readouterr().err
    weights = load_file(captioner / "model.safetensors")
    save_file(
        {name: value + 0.01 for name, value in weights.items()}, captioner / "model.safetensors", {"format": "pt"}
    )
    plugin.write_text(plugin.read_text() + "VALUE = 2\n")
    assert main([*words, "--max_steps", "3", *LAST.split()]) == 0
    said = capsys.readouterr().err
    for what in ("captioner.model_name_or_path", "the plugin mine.py"):
        assert f"{what} has changed since " in said
    assert "listener.path has changed" not in said


def test_figures_of_another_evaluation_are_not_compared(materials, tmp_path, capsys):
    """R@1 among few images stayed the best when a run was resumed with more."""
    recipe = str(materials.recipe(tmp_path, "xe"))
    words = ["train", recipe, "--metric_for_best_model", "CIDEr", "--eval_steps", "1", "--save_steps", "1"]
    assert main([*words, "--max_steps", "1", "--evaluation.limit", "2"]) == 0
    trained = tmp_path / "xe"
    capsys.readouterr()
    longer = [*words, "--max_steps", "3", *LAST.split()]
    floor = ["--best_floor", "{CIDEr: 0.5}"]
    assert main([*longer, "--evaluation.limit", "4", *floor]) == 2
    assert "was evaluated by other options, and best_floor compares with the start" in capsys.readouterr().err
    assert main([*longer, "--evaluation.limit", "4", "--on_hack", "stop"]) == 2
    assert "and on_hack compares with the start" in capsys.readouterr().err
    assert main([*longer, "--evaluation.limit", "4"]) == 0
    assert "evaluations up to step 1 were made by other options" in capsys.readouterr().err
    later = {step: line["eval_CIDEr"] for step, line in steps_of(trained).items() if step > 1}
    assert sorted(later) == [2, 3]
    best = best_of(trained)
    assert best == {
        "step": max(later, key=lambda step: (later[step], -step)),
        "metric": "CIDEr",
        "value": max(later.values()),
    }
    assert (
        main([*words, "--max_steps", "4", *LAST.split(), "--evaluation.limit", "4", "--evaluation.meteor", "true"]) == 0
    )
    assert "by other options" not in capsys.readouterr().err, "a further measure changes no other"


def test_a_floor_that_was_raised_holds_for_the_best_so_far(materials, tmp_path, capsys, monkeypatch):
    from tellapart.recipe.build import Watch

    figures = iter([(0.2, 1.0), (0.9, 0.5), (0.3, 1.0), (0.4, 1.0)])

    def measured(watch, objective):
        score, words = next(figures)
        return {"CIDEr": score, "mean_length": words}

    monkeypatch.setattr(Watch, "__call__", measured)
    monkeypatch.setattr("tellapart.recipe.run._measure_selected", lambda built, done: None)
    recipe = str(materials.recipe(tmp_path, "xe"))
    words = ["train", recipe, "--metric_for_best_model", "CIDEr", "--eval_steps", "1", "--save_steps", "1"]
    assert main([*words, "--max_steps", "2", "--best_floor", "{mean_length: 0.1}"]) == 0
    assert best_of(tmp_path / "xe")["step"] == 1
    capsys.readouterr()
    assert main([*words, "--max_steps", "3", "--best_floor", "{mean_length: 0.9}", *LAST.split()]) == 0
    assert "is kept as best-before-1" in capsys.readouterr().err
    assert best_of(tmp_path / "xe") == {"step": 3, "metric": "CIDEr", "value": 0.4}


@pytest.mark.parametrize("launched", [False, True])
def test_torchrun_s_patience_is_told(launched, monkeypatch, caplog):
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(KeyboardInterrupt, match="had just ended"), Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert "stopping after this step and a checkpoint" in caplog.text
    assert ("--shutdown_timeout (by default 30 s)" in caplog.text) == launched
