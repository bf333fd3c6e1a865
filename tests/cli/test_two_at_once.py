"""Two commands at one output: the second is refused with the first one's process; a stopped run starts again by itself."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tellapart.cli.main import main
from tellapart.errors import UsageError
from tellapart.locks import Lock
from tellapart.recipe import Recipe
from tellapart.training.loop import _Training

ME = f"(process {os.getpid()} on {socket.gethostname()})"


def error_of(capsys, *words) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.splitlines()[-1]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("flags", [(), ("--overwrite_output_dir",), ("--resume_from_checkpoint", "last")])
def test_a_second_training_is_refused_and_touches_nothing(materials, tmp_path, capsys, flags):
    recipe = materials.recipe(tmp_path, "xe", evaluation={"split": None})
    assert main(["train", str(recipe)]) == 0
    with Lock(tmp_path / "xe" / ".lock", "training into"):
        before = files(tmp_path / "xe")
        said = error_of(capsys, "train", recipe, *flags)
        assert said == (
            f"error: another process is training into {tmp_path / 'xe'} {ME}: wait for it, or choose another output."
        )
        assert files(tmp_path / "xe") == before
    assert not (tmp_path / "xe" / ".lock").exists()


def test_a_second_training_of_a_listener_is_refused(materials, tmp_path, capsys):
    recipe = {"listener": {"path": str(materials.listener)}, "data": {"path": str(materials.data), "split": "train"}}
    (tmp_path / "l.yaml").write_text(json.dumps(recipe | {"max_steps": 1, "per_device_train_batch_size": 4}))
    with Lock(tmp_path / "run" / ".lock", "training into"):
        said = error_of(capsys, "train-listener", tmp_path / "l.yaml", "--output_dir", tmp_path / "run")
        assert said.startswith(f"error: another process is training into {tmp_path / 'run'} {ME}")


def test_a_second_frontier_is_refused(materials, tmp_path, capsys):
    recipe = materials.recipe(tmp_path, "dico", output_dir=None)
    words = ("frontier", recipe, "--grid", "objective.beta=0.1", "--output_dir", tmp_path / "f", "--seeds", "1")
    with Lock(tmp_path / "f" / ".lock", "running trainings in"):
        said = error_of(capsys, *words)
    assert said.startswith(f"error: another process is running trainings in {tmp_path / 'f'} {ME}")


def test_a_second_captioning_is_refused(materials, tmp_path, capsys):
    with Lock(tmp_path / "c.jsonl.work" / "lock", "captioning into"):
        words = ("caption", materials.photos, "--captioner", materials.captioner, "--output", tmp_path / "c.jsonl")
        said = error_of(capsys, *words)
    assert said.startswith(f"error: another process is captioning into {tmp_path / 'c.jsonl.work'} {ME}")


@pytest.mark.parametrize("flags", [(), ("--resume_from_checkpoint", "last")])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(materials, tmp_path, capsys, flags):
    """Each of the two commands told the user to give the other."""
    recipe, run = materials.recipe(tmp_path, "xe", evaluation={"split": None}), tmp_path / "xe"
    assert main(["train", str(recipe)]) == 0
    whole = files(run)
    shutil.rmtree(run / "checkpoint-2")
    (run / "trainer_state.json").unlink()
    capsys.readouterr()
    assert main(["train", str(recipe), *flags]) == 0
    assert (
        f"note: the run in {run} was stopped before its first checkpoint, and this one begins anew there."
        in capsys.readouterr().err
    )
    again = files(run)
    weights = "checkpoint-2/captioner/model.safetensors"
    assert again.keys() == whole.keys()
    assert again[weights] == whole[weights]
    assert len(again["metrics.jsonl"].splitlines()) == len(whole["metrics.jsonl"].splitlines())


class Killed(BaseException):
    """What nothing catches."""


def test_a_run_that_was_killed_with_a_best_model_and_no_checkpoint_begins_anew(
    materials, tmp_path, capsys, monkeypatch
):
    """The state next to ``best/`` was taken for that of a checkpoint: no command went on, and frontiers failed for good."""
    recipe, run = materials.recipe(tmp_path, "xe", metric_for_best_model="CIDEr", eval_steps=1), tmp_path / "xe"
    step = _Training._step

    def killed(training, number, *given):
        if number == 1:
            raise Killed
        step(training, number, *given)

    monkeypatch.setattr(_Training, "_step", killed)
    with pytest.raises(Killed):
        main(["train", str(recipe)])
    assert (run / "best").is_dir()
    assert not list(run.glob("checkpoint-*"))
    monkeypatch.setattr(_Training, "_step", step)
    assert main(["train", str(recipe)]) == 0
    assert "was stopped before its first checkpoint, and this one begins anew there" in capsys.readouterr().err
    assert (run / "checkpoint-2").is_dir()


@pytest.mark.parametrize("change", [{}, {"learning_rate": 1e-3}])
def test_a_run_whose_checkpoints_were_removed_is_not_taken_for_one_that_never_had_any(materials, tmp_path, change):
    """Whoever kept ``best/`` alone lost it by giving the command again."""
    options = {"metric_for_best_model": "CIDEr", **change}
    recipe, run = Recipe.load(materials.recipe(tmp_path, "xe", metric_for_best_model="CIDEr")), tmp_path / "xe"
    recipe.train()
    shutil.rmtree(run / "checkpoint-2")
    kept = files(run / "best")
    again = recipe.replaced({f"training.{name}": value for name, value in options.items()})
    for resume in (False, True):
        with pytest.raises(UsageError, match="already holds a run"):
            again.train(run, resume=resume)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match="already holds a run"):
        again.train(run)
    assert files(run / "best") == kept


def test_a_run_that_ended_before_its_first_step_leaves_no_trace(materials, tmp_path, capsys):
    """A metric that only a listener of another kind gives is found out at step 0."""
    recipe, run = materials.recipe(tmp_path, "xe"), tmp_path / "xe"
    said = error_of(capsys, "train", recipe, "--metric_for_best_model", "listener_true")
    assert "metric_for_best_model names 'listener_true', but the evaluation gives" in said
    assert (run / "run.json").is_file()
    assert main(["train", str(recipe), "--metric_for_best_model", "CIDEr"]) == 0
    assert (run / "best").is_dir()


def test_only_the_same_recipe_begins_anew(materials, tmp_path, capsys):
    """The log of another one may be wanted."""
    recipe, run = materials.recipe(tmp_path, "xe", evaluation={"split": None}), tmp_path / "xe"
    assert main(["train", str(recipe)]) == 0
    shutil.rmtree(run / "checkpoint-2")
    said = error_of(capsys, "train", recipe, "--learning_rate", "1e-5")
    assert said.endswith("already holds a run: name another folder, or delete it with --overwrite_output_dir.")


PROGRAM = [sys.executable, "-m", "tellapart.cli"]


@pytest.mark.slow
def test_captioning_into_a_folder_that_is_removed_fails(materials, tmp_path):
    """It ended with code 0 and "captioned 128 images", and nothing was written."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(300):
        (photos / f"{number:03}.png").symlink_to(materials.photos / f"{number % 14:02}.png")
    options = ("--captioner", str(materials.captioner), "--max_new_tokens", "8", "--batch_size", "1", "--gate", "none")
    words = [*PROGRAM, "caption", str(photos), *options, "--output", str(tmp_path / "o" / "c.jsonl")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal, until = tmp_path / "o" / "c.jsonl.work" / "journal-0.jsonl", time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size) and time.monotonic() < until:
        time.sleep(0.005)
    shutil.rmtree(tmp_path / "o")
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert said.splitlines()[-1] == f"error: {journal}: No such file or directory: check the path."


TWO_TRAININGS = """
import os, sys
import tellapart.captioners.huggingface, tellapart.training.loop
from tellapart.cli.main import main
from tellapart.training.loop import _Training
folder, recipe = sys.argv[1:]
started = []
for seed in ("1", "2"):
    started.append(os.fork())
    if not started[-1]:
        os.dup2(os.open(f"{folder}/said-{seed}", os.O_WRONLY | os.O_CREAT), 2)
        sys.exit(main(["train", recipe, "--seed", seed]))
print("codes", *(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started))
"""
"""Two processes that share the imports, and so begin to train at the same moment."""


@pytest.mark.slow
def test_two_trainings_started_together(materials, tmp_path):
    """One ends with its own weights, log and seed; the other is refused with a sentence."""
    recipe = materials.recipe(tmp_path, "xe", evaluation={"split": None}, max_steps=20)
    command = [sys.executable, "-c", TWO_TRAININGS, str(tmp_path), str(recipe)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=250, check=True)
    codes = [int(code) for code in done.stdout.splitlines()[-1].removeprefix("codes").split()]
    said = [(tmp_path / f"said-{seed}").read_text() for seed in (1, 2)]
    assert sorted(codes) == [0, 2]
    refused, seed = said[codes.index(2)].splitlines()[-1], codes.index(0) + 1
    assert "another process is training into" in refused or "already holds a run" in refused
    assert "Traceback" not in "".join(said)
    assert json.loads((tmp_path / "xe" / "run.json").read_text())["seed"] == seed
    assert len((tmp_path / "xe" / "metrics.jsonl").read_text().splitlines()) == 20
