"""``tellapart compare`` after trainings: the start model, several seeds, and images that chose a checkpoint."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest

from tellapart.cli.main import main


def run(*words) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def seeds(materials, tmp_path_factory):
    """Two seeds of one training, which selects its checkpoint."""
    folder = tmp_path_factory.mktemp("seeds")
    recipe = materials.recipe(folder, "xe", metric_for_best_model="CIDEr")
    for seed in (0, 1):
        assert run("train", recipe, "--seed", seed, "--output_dir", folder / f"xe-{seed}") == 0
    return folder / "xe-0", folder / "xe-1"


def test_the_start_model_comes_first_unless_it_is_not_wanted(seeds, capsys):
    capsys.readouterr()
    assert run("compare", *seeds, "--format", "json", "--samples", "50") == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told["runs"]] == ["start model", "xe-0", "xe-1"]
    began = json.loads(next((seeds[0] / "start" / "eval").glob("*/metrics.json")).read_text())
    assert told["runs"][0]["metrics"] == began["metrics"]
    assert run("compare", *seeds, "--format", "csv", "--start", "false") == 0
    assert [row["run"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["xe-0", "xe-1"]


def test_a_run_that_selected_its_start_says_so(seeds, tmp_path, capsys):
    copies = [shutil.copytree(folder, tmp_path / folder.name) for folder in seeds]
    for folder, step in zip(copies, (0, 1), strict=True):
        state = json.loads((folder / "trainer_state.json").read_text())
        state["selection"]["best"]["step"] = step
        (folder / "trainer_state.json").write_text(json.dumps(state))
    capsys.readouterr()
    assert run("compare", *copies, "--format", "csv", "--samples", "50") == 0
    said = capsys.readouterr().err
    assert "note: xe-0 selected step 0, so what is shown of it is its start." in said
    assert "xe-1 selected" not in said


def test_rows_of_one_name_are_told_apart_by_their_folders(seeds, tmp_path, capsys):
    for place in ("a", "b"):
        shutil.copytree(seeds[0], tmp_path / place / "xe-0")
    words = [tmp_path / place / "xe-0" for place in ("a", "b")]
    capsys.readouterr()
    assert run("compare", *words, "--format", "csv", "--samples", "50", "--start", "false") == 0
    rows = [row["run"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert rows == [f"xe-0 ({word})" for word in words]


def test_a_table_of_the_images_that_chose_says_so(seeds, materials, tmp_path, capsys):
    capsys.readouterr()
    assert run("compare", *seeds) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "NOTE: these images chose the checkpoint of xe-0, xe-1 (by CIDEr)" in said
    recipe = materials.recipe(tmp_path, "xe", metric_for_best_model="CIDEr")
    assert run("train", recipe) == 0
    assert "NOTE: these images chose the checkpoint of xe (by CIDEr)" in " ".join(capsys.readouterr().out.split())
    assert run("train", materials.recipe(tmp_path, "xe"), "--overwrite_output_dir") == 0
    assert "NOTE" not in capsys.readouterr().out  # no metric selects


def test_other_images_with_the_start_model_beside(seeds, capsys):
    for words in (("--start",), ()):  # the second measurement must not need the first's start model
        assert run("score", seeds[0], "--split", "train", *words) == 0
    capsys.readouterr()
    assert run("compare", seeds[0]) == 2  # val and train
    assert "has 2 evaluations: name the protocol to use" in capsys.readouterr().err
    assert run("compare", seeds[0], "--protocol", "train", "--format", "csv") == 0
    said = capsys.readouterr().out
    assert [row["run"] for row in csv.DictReader(io.StringIO(said))] == ["start model", "xe-0"]
    assert run("score", seeds[0], "--split", "val", "--num_beams", "2") == 0  # other decoding, the same images
    assert "NOTE: these images chose" in " ".join(capsys.readouterr().out.split())
    assert run("score", seeds[0], "--split", "train") == 0
    assert "NOTE" not in capsys.readouterr().out


def test_seeds_are_pooled_under_the_name_of_the_method(seeds, capsys):
    capsys.readouterr()
    assert run("compare", *seeds, "--pool", "seeds", "--format", "latex", "--protocol", "val-6-greedy") == 0
    said = capsys.readouterr().out
    assert "\nxe & " in said
    assert "\\pm" in said
    assert "\nstart model & " in said
    assert run("compare", seeds[0], "--pool", "seeds", "--protocol", "val-6-greedy") == 2
    assert "found no two runs that differ only in the seed" in capsys.readouterr().err
    assert run("compare", *seeds, "--pool", "seeds", "--samples", "50") == 2
    assert "--samples does nothing with --pool" in capsys.readouterr().err
    assert run("compare", seeds[0], "--start", "false", "--samples", "50", "--protocol", "val-6-greedy") == 2
    assert f"--samples does nothing where {seeds[0]} is compared with no other run" in capsys.readouterr().err
    assert run("compare", seeds[0], "--samples", "50", "--protocol", "val-6-greedy") == 0, "with its start"


def test_start_needs_a_run(materials, capsys):
    words = ("score", materials.captioner, "--data", materials.data, "--split", "val", "--start")
    assert run(*words) == 2
    assert "is not a run: leave it out" in capsys.readouterr().err
