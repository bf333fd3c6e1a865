"""What starting again in the folder of an earlier run removes, and what it leaves."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tellapart.cli.main import main
from tellapart.recipe.clearing import clear

NAMES = (
    "runs/other/listener/weights",
    "runs/tellapart/mine",
    "samples/mine.png",
    "eval/notes.txt",
    "eval/own/mine.txt",
)
MORE = ("start/mine", "best-before-me/mine")


def error_of(capsys, *words: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2, words
    return capsys.readouterr().err.strip().splitlines()[-1]


def put(folder: Path) -> dict[str, str]:
    """Somebody's files under the names that a run uses; name -> content."""
    for name in (*NAMES, *MORE):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return {name: name for name in (*NAMES, *MORE)}


def left(folder: Path) -> dict[str, str]:
    found = {name: folder / name for name in (*NAMES, *MORE)}
    return {name: path.read_text() for name, path in found.items() if path.exists()}


@pytest.fixture
def listener_recipe(materials, tmp_path):
    """One step on an evaluated listener, from the one of the materials unless another is named."""

    def write(**changes) -> Path:
        value = {
            "listener": {"path": str(materials.listener)},
            "data": {"path": str(materials.data), "split": "train"},
            "evaluation": {"split": "val"},
            "max_steps": 1,
            "per_device_train_batch_size": 4,
        }
        path = tmp_path / "listener.yaml"
        path.write_text(yaml.safe_dump(value | changes))
        return path

    return write


def test_a_run_that_ended_early_takes_nothing_else_with_it(materials, tmp_path, capsys):
    recipe, folder = materials.recipe(tmp_path, "xe", max_steps=1), tmp_path / "project"
    mine = put(folder)
    words = ("train", recipe, "--output_dir", folder)
    # A metric that the evaluation lacks ends the run at step 0.
    assert "listener_true" in error_of(capsys, *words, "--metric_for_best_model", "listener_true")
    assert (folder / "run.json").is_file()
    assert main([*map(str, words)]) == 0
    assert left(folder) == mine


def test_overwriting_removes_evaluations_and_logs_of_the_run_only(materials, tmp_path):
    recipe = str(materials.recipe(tmp_path, "xe", max_steps=1))
    folder = tmp_path / "xe"
    assert main(["train", recipe]) == 0
    own = [*(folder / "eval").iterdir(), *(folder / "start" / "eval").iterdir()]
    assert len(own) == 2
    for path in own:
        (path / "metrics.json").write_text(json.dumps("of the first run"))
    tracked = folder / "runs" / "tellapart"
    (tracked / "1699.5").mkdir(parents=True)
    logs = [tracked / "events.out.tfevents.1.host.1.0", tracked / "1699.5" / "hparams.yml"]
    for path in logs:
        path.write_text("a log")
    mine = put(folder)
    assert main(["train", recipe, "--overwrite_output_dir"]) == 0
    assert left(folder) == mine
    assert not any(path.exists() for path in (*logs, tracked / "1699.5"))
    assert all(json.loads((path / "metrics.json").read_text()) != "of the first run" for path in own)


def test_the_logs_of_a_run_that_is_named_as_they_are_stay(tmp_path):
    other = tmp_path / "runs" / "tellapart"
    (other / "empty").mkdir(parents=True)
    for name in ("run.json", "events.out.tfevents.1.host.1.0"):
        (other / name).write_text("{}")
    clear(tmp_path)
    assert sorted(path.name for path in other.iterdir()) == ["empty", "events.out.tfevents.1.host.1.0", "run.json"]


def test_a_listener_that_no_run_made_is_not_replaced(listener_recipe, materials, tmp_path, capsys):
    models = tmp_path / "models"
    shutil.copytree(materials.listener, models / "listener")
    before = {path.name: path.read_bytes() for path in (models / "listener").iterdir()}
    recipe = listener_recipe(listener={"path": str(models / "listener")})
    for flags in ((), ("--overwrite_output_dir",)):
        said = error_of(capsys, "train-listener", recipe, "--output_dir", models, *flags)
        assert "has 'listener', which no run recorded there has made and training would replace" in said
    assert {path.name: path.read_bytes() for path in (models / "listener").iterdir()} == before


def test_a_folder_is_not_replaced_by_the_selected_checkpoint(materials, tmp_path, capsys):
    recipe, best = materials.recipe(tmp_path, "xe", metric_for_best_model="CIDEr"), tmp_path / "xe" / "best"
    best.mkdir(parents=True)
    assert "has 'best', which no run recorded there has made" in error_of(capsys, "train", recipe)
    assert not any(best.iterdir())


@pytest.mark.parametrize("place", ["", "listener", "best/listener"])
def test_a_listener_that_is_read_is_not_removed(place, listener_recipe, tmp_path, capsys):
    run = tmp_path / "own"
    first = listener_recipe(metric_for_best_model="R@1_mean")
    assert main(["train-listener", str(first), "--output_dir", str(run)]) == 0
    words = ("train-listener", first, "--output_dir", run, "--listener.path", run / place, "--overwrite_output_dir")
    assert f"listener.path reads {run / place}, which starting again in {run} would remove" in error_of(capsys, *words)
    assert (run / "listener" / "model.safetensors").is_file()


def test_a_captioner_that_is_read_is_not_removed(materials, tmp_path, capsys):
    recipe, run = materials.recipe(tmp_path, "xe", evaluation={"split": None}, max_steps=1), tmp_path / "xe"
    assert main(["train", str(recipe)]) == 0
    for start in (run, run / "checkpoint-1", run / "checkpoint-1" / "captioner"):
        words = ("train", recipe, "--captioner.model_name_or_path", start, "--overwrite_output_dir")
        assert f"captioner.model_name_or_path reads {start}" in error_of(capsys, *words)
    assert (run / "checkpoint-1").is_dir()
