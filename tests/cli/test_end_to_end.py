"""Whole commands on tiny models: train, caption, score, compare, report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tellapart import cli
from tellapart.cli import train
from tellapart.cli.main import main
from tellapart.recipe.fingerprint import digest
from tellapart.training.run import Run
from tellapart.training.selection import Best
from two_processes import run_two


def run(*words) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def runs(materials, tmp_path_factory):
    """One finished run a method."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("xe", "scst", "dico"):
        recipe = materials.recipe(folder, method)
        assert run("train", recipe, "--metric_for_best_model", "CIDEr", "--seed", "1") == 0
    return folder


@pytest.mark.parametrize("method", ["xe", "scst", "dico"])
def test_a_run_holds_everything_that_was_made(runs, method):
    folder = runs / method
    told = json.loads((folder / "run.json").read_text())
    assert told["recipe"] == yaml.safe_load((folder / "recipe.yaml").read_text())
    assert (told["recipe"]["method"], told["recipe"]["training"]["seed"], told["total_steps"]) == (method, 1, 2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines if "loss" in line} == {1, 2}
    assert {line["step"] for line in lines if "eval_CIDEr" in line} == {0, 2}
    assert (folder / "checkpoint-2" / "captioner" / "config.json").is_file()
    assert (folder / "best" / "captioner" / "model.safetensors").is_file()
    (measured,) = (folder / "eval").iterdir()
    metrics = json.loads((measured / "metrics.json").read_text())["metrics"]
    best = max(line["eval_CIDEr"] for line in lines if "eval_CIDEr" in line)
    assert metrics["CIDEr"] == pytest.approx(best)
    assert {"listener_R@1", "Bleu_4", "Self-BLEU"} <= set(metrics)


def test_a_checkpoint_is_scored_as_its_run(runs, tmp_path, capsys):
    """As pages and `train` itself say: it asked for the images, and with them did not decode as the run does."""
    shutil.copytree(runs / "dico", tmp_path / "dico")
    checkpoint = tmp_path / "dico" / "checkpoint-2"
    before, kept = digest(checkpoint), digest(tmp_path / "dico")
    assert run("score", checkpoint, "--start") == 0
    said = capsys.readouterr()
    assert f"kept in {checkpoint / 'eval'}" in said.err
    (folder,) = (checkpoint / "eval").iterdir()
    (of_run,) = (tmp_path / "dico" / "eval").iterdir()
    one, other = (json.loads((place / "metrics.json").read_text()) for place in (folder, of_run))
    assert folder.name == of_run.name
    assert one["metrics"].keys() == other["metrics"].keys()
    assert one["protocol"]["decoding"] == other["protocol"]["decoding"]
    assert one["protocol"]["listeners"] == other["protocol"]["listeners"]
    assert (digest(checkpoint), digest(tmp_path / "dico")) == (before, kept), "it is the same captioner"
    assert run("compare", tmp_path / "dico", checkpoint) == 0
    assert "checkpoint-2" in capsys.readouterr().out
    assert run("score", tmp_path / "checkpoint-7") == 2


def test_a_run_is_never_lost_by_accident(runs, capsys):
    before = {path: path.stat().st_mtime_ns for path in (runs / "xe").rglob("*")}
    assert run("train", runs / "xe.yaml") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --output_dir {runs / 'xe'} already holds a run: name another folder")
    assert said.count("\n") == 1
    words = ("--resume_from_checkpoint", "last", "--output_dir", runs / "xe")
    assert run("train", runs / "dico.yaml", *words) == 2
    assert f"the run in {runs / 'xe'} has method 'xe', not 'dico'" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (runs / "xe").rglob("*")} == before


def test_overwriting_removes_the_run_and_nothing_else(materials, tmp_path):
    recipe = materials.recipe(tmp_path, "xe", evaluation={"split": None}, max_steps=1)
    assert run("train", recipe) == 0
    (tmp_path / "xe" / "notes.txt").write_text("mine")
    (tmp_path / "xe" / "checkpoint-9").mkdir()
    assert run("train", recipe, "--overwrite_output_dir") == 0
    assert (tmp_path / "xe" / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in (tmp_path / "xe").glob("checkpoint-*")) == ["checkpoint-1"]


def test_resuming_goes_on(materials, tmp_path):
    recipe = materials.recipe(tmp_path, "xe", evaluation={"split": None})
    assert run("train", recipe) == 0
    assert run("train", recipe, "--resume_from_checkpoint", "last", "--max_steps", "3") == 0
    assert json.loads((tmp_path / "xe" / "run.json").read_text())["resumed_at_step"] == 2
    assert (tmp_path / "xe" / "checkpoint-3").is_dir()
    # Killed before the recipe was kept, and once more after run.json told of the resume.
    (tmp_path / "xe" / "recipe.yaml").unlink()
    assert run("train", recipe, "--resume_from_checkpoint", "last", "--max_steps", "3") == 0
    assert yaml.safe_load((tmp_path / "xe" / "recipe.yaml").read_text())["method"] == "xe"


def test_a_dry_run_builds_everything_and_leaves_nothing(materials, tmp_path, capsys):
    recipe = materials.recipe(tmp_path, "dico")
    assert run("train", recipe, "--dry_run") == 0
    said = capsys.readouterr()
    assert yaml.safe_load(said.out)["method"] == "dico"
    assert "8 training images" in said.err
    assert not (tmp_path / "dico").exists()


def test_lora(materials, tmp_path, capsys):
    recipe = materials.recipe(tmp_path, "dico", evaluation={"split": None}, max_steps=1)
    assert run("train", recipe, "--captioner.lora.r", "2") == 0
    assert (tmp_path / "dico" / "checkpoint-1" / "captioner" / "adapter_config.json").is_file()
    capsys.readouterr()
    assert run("caption", materials.photos / "00.png", "--captioner", tmp_path / "dico") == 0
    assert capsys.readouterr().out.count("\n") == 1
    idle = ("--captioner.lora.dropout", "0.5", "--overwrite_output_dir")
    assert run("train", recipe, *idle) == 2
    assert (
        "captioner.lora.dropout is 0.5, but dropout is off in training: set training.dropout" in capsys.readouterr().err
    )
    assert run("train", recipe, *idle, "--dropout", "true") == 0


def test_captions_are_printed_a_line_an_image(materials, runs, capsys):
    words = ("--captioner", runs / "dico", "--max_new_tokens", "8", "--num_beams", "2")
    assert run("caption", materials.photos, *words, "--batch_size", "3") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [path for path, _ in lines] == [str(materials.photos / f"{i:02}.png") for i in range(14)]
    assert len({caption for _, caption in lines}) > 3
    assert run("caption", materials.photos / "03.png", *words) == 0
    assert capsys.readouterr().out.split("\t")[1].strip() == lines[3][1]  # neighbours in a batch change nothing


def test_captions_in_files(materials, tmp_path, capsys):
    (tmp_path / "000000000042.png").write_bytes((materials.photos / "01.png").read_bytes())
    (tmp_path / "cat.png").write_bytes((materials.photos / "02.png").read_bytes())
    words = ("caption", tmp_path, "--captioner", materials.captioner, "--num_beams", "1", "--output")
    assert run(*words, tmp_path / "out.json") == 0
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [row["image_id"] for row in rows] == [42, "cat"]
    assert run(*words, tmp_path / "out.jsonl") == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["file_name"] for line in lines] == ["000000000042.png", "cat.png"]
    assert [line["caption"] for line in lines] == [row["caption"] for row in rows]
    assert capsys.readouterr().out == ""
    assert run(*words, tmp_path / "out.json") == 2
    assert "exists: name another file, or give --overwrite" in capsys.readouterr().err
    assert run(*words, tmp_path / "out.json", "--overwrite") == 0


def test_compare_and_report(runs, tmp_path, capsys):
    words = ("compare", runs / "xe", runs / "dico", "--start", "false")
    assert run(*words, "--format", "json", "--samples", "50") == 0
    told = json.loads(capsys.readouterr().out)
    first, second = told["runs"]
    assert (first["name"], second["name"]) == ("xe", "dico")
    difference = second["difference"]["CIDEr"]["value"]
    assert difference == pytest.approx(second["metrics"]["CIDEr"] - first["metrics"]["CIDEr"])
    assert run("compare", runs / "xe", runs / "dico") == 0
    assert "CIDEr" in capsys.readouterr().out
    assert run("report", runs / "xe", runs / "dico", "--output", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert "data:image/" in page


def test_score_a_run_elsewhere_and_a_file_of_captions(materials, runs, tmp_path, capsys):
    assert run("score", runs / "xe", "--split", "train", "--output_dir", tmp_path / "kept", "--num_beams", "2") == 0
    (folder,) = (tmp_path / "kept" / "eval").iterdir()
    written = json.loads((folder / "metrics.json").read_text())
    assert written["protocol"]["images"] == 8
    assert "beam 2" in written["protocol"]["decoding"]
    captions = folder / "captions_results.json"
    words = ("--data", materials.data, "--split", "train", "--listener", materials.listener)
    assert run("score", captions, *words, "--output_dir", tmp_path / "given") == 0
    (given,) = (tmp_path / "given" / "eval").iterdir()
    again = json.loads((given / "metrics.json").read_text())["metrics"]
    assert again["CIDEr"] == pytest.approx(written["metrics"]["CIDEr"])
    assert again["listener_R@1"] == written["metrics"]["listener_R@1"]
    assert "CIDEr" in capsys.readouterr().out


def test_evaluating_on_training_images_is_said(materials, tmp_path, capsys):
    recipe = materials.recipe(tmp_path, "xe", evaluation={"split": "train", "max_new_tokens": 8})
    assert run("train", recipe, "--dry_run", "--evaluation.limit", "5") == 0
    assert "note: 5 of the 5 images of the evaluation are trained on" in capsys.readouterr().err


def test_the_evaluation_may_have_data_of_its_own(materials, runs, tmp_path, capsys):
    recipe = materials.recipe(tmp_path, "xe", evaluation={"path": str(materials.photos), "split": "val"})
    assert run("train", recipe, "--dry_run") == 0
    said = capsys.readouterr().err
    assert "14 images" in said
    assert "8 training images" in said


@pytest.mark.slow
def test_processes_share_a_run(materials, tmp_path):
    """As ``torchrun`` starts them; on CPUs too they are one run, not two that write into the same folder."""
    recipe = materials.recipe(tmp_path, "scst", evaluation={"split": None}, per_device_train_batch_size=2)
    run_two("-m", "tellapart.cli", "train", str(recipe), torchrun=True)
    told = json.loads((tmp_path / "scst" / "run.json").read_text())
    assert (told["world_size"], told["effective_batch_size"]) == (2, 4)
    assert (tmp_path / "scst" / "recipe.yaml").is_file()


@pytest.mark.slow
def test_a_run_in_shards_measures_its_selected_captioner(materials, tmp_path):
    """Steps too small to change a caption: the start is selected, and is read from its folder, since the captioner is cut."""
    options = {"learning_rate": 1e-12, "metric_for_best_model": "CIDEr", "per_device_train_batch_size": 2}
    recipe = materials.recipe(tmp_path, "scst", shard="full", **options)
    run_two(str(Path(cli.__file__).with_name("__main__.py")), "train", str(recipe))
    folder = tmp_path / "scst"
    assert json.loads((folder / "run.json").read_text())["world_size"] == 2
    assert (folder / "best" / "captioner" / "model.safetensors").is_file()
    (measured,) = (folder / "eval").iterdir()
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first = next(line["eval_CIDEr"] for line in logged if "eval_CIDEr" in line)
    assert json.loads((measured / "metrics.json").read_text())["metrics"]["CIDEr"] == pytest.approx(first)


def test_a_command_leaves_the_process_group(monkeypatch):
    """Else gloo's threads outlive the work, and the process may abort while it ends."""
    import torch.distributed as dist

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert main(["--version"]) == 0
        assert not dist.is_initialized()
        assert main(["--version"]) == 0
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


ENDS = """
import atexit, sys, threading, time
import torch.distributed
from tellapart.cli import main

class Kept:
    def __del__(self):
        print("taken down")

sys.kept = Kept()
atexit.register(print, "tidied")
threading.Thread(target=lambda: (time.sleep(0.5), print("waited for"))).start()
sys.argv = ["tellapart", *sys.argv[1:]]
main.program()
"""


@pytest.mark.parametrize(("word", "code"), [("--version", 0), ("trian", 2)])
def test_one_of_many_processes_ends_without_taking_the_interpreter_down(word, code):
    """Else threads of process groups that live on in sharded models abort some processes whose work is done."""
    given = os.environ | {"WORLD_SIZE": "2"}
    ended = subprocess.run([sys.executable, "-c", ENDS, word], capture_output=True, text=True, env=given, check=False)
    assert (ended.returncode, ended.stdout.splitlines()[-2:]) == (code, ["waited for", "tidied"])


def test_the_program_ends_with_the_code_and_survives_a_reader_that_leaves(materials):
    program = [sys.executable, "-m", "tellapart.cli"]
    failed = subprocess.run([*program, "trian"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "error: 'trian' is not a command of tellapart: did you mean train?\n"
    left = subprocess.Popen([*program, "methods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    left.stdout.close()
    assert left.stderr.read() == ""
    assert left.wait() == 0


def test_captions_of_a_folder_are_scored_on_it(materials, tmp_path, capsys):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, name in enumerate(("000000000007", "holiday")):  # COCO's ids are numbers, others names without endings
        shutil.copy(materials.photos / f"{number:02}.png", folder / f"{name}.png")
    out = tmp_path / "out.json"
    words = ["--captioner", str(materials.captioner), "--num_beams", "1", "--output", str(out)]
    assert main(["caption", str(folder), *words]) == 0
    rows = json.loads(out.read_text())
    assert [row["image_id"] for row in rows] == [7, "holiday"]
    capsys.readouterr()
    assert main(["score", str(out), "--data", str(folder)]) == 0
    assert "2 images" in capsys.readouterr().out


@pytest.mark.parametrize("step", [0, 2])
def test_where_no_training_was_selected_the_last_step_is_named(step, tmp_path, capsys):
    built = SimpleNamespace(watch=None)
    train._conclude(built, Run(tmp_path, 4, [], Best(step, "CIDEr", 1.0)))
    said = capsys.readouterr().err
    assert f"trained 4 steps: {tmp_path / 'best'} (of step {step}, by CIDEr)" in said
    note = (
        "that is the captioner before training: no later evaluation was better by CIDEr and within training.best_floor."
    )
    assert (note in said) == (f"The last step is {tmp_path / 'checkpoint-4'}." in said) == (step == 0)
