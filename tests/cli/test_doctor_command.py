"""``tellapart doctor``: the machine, and the verdicts of runs."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from tellapart.cli import doctor
from tellapart.cli.main import main
from tellapart.recipe.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "verdicts" / "recorded"


def run_folder(tmp_path, name, **files):
    """A run whose log is a recorded one."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "metrics.jsonl").write_text((RECORDED / f"{name}.jsonl").read_text())
    for file, value in files.items():
        (folder / f"{file}.json").write_text(json.dumps(value))
    return folder


def test_a_run_that_went_wrong(tmp_path, capsys):
    ended = "ended at step 30, hacked for 2 evaluations in a row (grammar), with the weights of that step."
    run = {"total_steps": 60, "config": {"best_floor": {"CIDEr": 0.99}}}
    folder = run_folder(tmp_path, "collapsed_wtf", run=run, trainer_state={"ended": ended})
    assert main(["doctor", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}: step 60 of 60, 7 evaluations"
    assert "grammar: The reward does not see grammar: lower learning_rate" in "\n".join(lines)
    assert all(any(f" {name}: " in line for line in lines) for name in ("grammar", "unfinished", "repetition"))
    assert any(line.strip() == ended for line in lines)
    assert any("from step 10, a change" in line for line in lines)
    assert "not measured: grammar head (evaluation.grammar); fluency (evaluation.language_model)" in lines[-1]
    assert main(["doctor", str(folder), "--strict", "true"]) == 1


def test_hacking_that_another_sign_keeps_up_holds_at_the_end(tmp_path, capsys):
    """Grammar is broken at step 20 alone, the judge from step 30 on."""
    values = zip((100.0, 99.0, 50.0, 98.0, 98.0), (30.0, 30.0, 30.0, 27.0, 26.0), strict=True)
    lines = [
        {"step": 10 * i, "reward": 1.0 + i / 10, "eval_grammatical": grammar, "eval_judge_R@1": judge}
        for i, (grammar, judge) in enumerate(values)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["doctor", str(tmp_path), "--strict", "true"]) == 1
    (told,) = [line for line in capsys.readouterr().out.splitlines() if " hacking: " in line]
    assert "over by the end" not in told


def test_what_was_held_against_nothing_is_told(tmp_path, capsys):
    lines = [{"step": n, "eval_most_common_caption": 90.0, "eval_mean_length": 9.0 - n} for n in range(8)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["doctor", str(tmp_path)]) == 0
    assert "caption): longer, shorter, one caption.\n" in capsys.readouterr().out
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines[0] | {"eval_most_common_caption": 50.0}) + "\n")
    assert main(["doctor", str(tmp_path)]) == 0
    assert "no reference value yet" not in capsys.readouterr().out


def test_a_log_whose_only_line_is_cut_is_not_called_right(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "eval_gramm')
    assert main(["doctor", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "no line of the log can be read so far" in out
    assert "nothing is wrong" not in out


def test_a_floor_of_the_run_is_its_limit(tmp_path, capsys):
    """CIDEr of 1.698 at step 0 and 1.583 at the end, 0.93 of it."""
    folder = run_folder(tmp_path, "healthy_scst", run={"config": {"best_floor": {"CIDEr": 0.99}}})
    assert main(["doctor", str(folder), "--strict", "true"]) == 1
    assert "likeness" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["healthy_dico", "healthy_sle"])
def test_changes_are_told_and_are_nothing_wrong(tmp_path, capsys, name):
    assert main(["doctor", str(run_folder(tmp_path, name)), "--strict", "true"]) == 0
    said = capsys.readouterr().out
    assert ("a change" in said) == (name == "healthy_dico")
    assert ("nothing is wrong" in said) == (name == "healthy_sle")


def test_several_runs_and_one_that_still_trains(tmp_path, capsys):
    """Its last line is cut, since it is being written."""
    folder = run_folder(tmp_path, "healthy_sle", run={"total_steps": 100})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 65, "los')
    other = run_folder(tmp_path, "collapsed_lstm_sle")
    assert main(["doctor", str(folder), str(other), "--strict", "true"]) == 1
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert heads == [f"{folder}: step 60 of 100, 7 evaluations", f"{other}: step 60, 7 evaluations"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere does not exist: correct the path."),
        (["--strict", "true"], "--strict does nothing without a run."),
    ],
)
def test_wrong_words(words, said, capsys):
    assert main(["doctor", *words]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


def test_nothing_is_said_to_be_right_of_a_log_that_cannot_be_read(tmp_path, capsys):
    log = tmp_path / "events.out.tfevents.1"
    log.write_bytes(bytes(range(100)))
    assert main(["doctor", str(log), "--strict", "true"]) == 1
    said = capsys.readouterr().out
    assert "no figure of this log can be read" in said
    assert "nothing is wrong" not in said


def test_the_machine(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for name in ("Python", "torch", "CPU", "GPU", "Java", "cache", "world, full", "world, small", *doctor.PARTS):
        assert f"  {name} " in said
    assert torch.__version__ in said


def test_every_extra_is_told_of_with_its_modules():
    """The table follows pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {part.extra for part in doctor.PARTS.values()} - {None} == set(extras) - {"dev", "docs"}


def test_a_missing_part_is_told_with_its_cost(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    lines = dict(doctor.part_lines())
    assert lines["faiss"] == (
        "missing: above 200,000 images neighbours are mined exactly: on one core 10 minutes instead of 3 at 200,000, and 4 "
        "hours instead of 1 at 1,000,000 (pip install 'tellapart[faiss]')"
    )
    assert all(told.startswith("missing: ") for told in lines.values())


def test_java_is_told_with_what_spice_lacks(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    name, told = doctor.java_line()
    assert name == "Java"
    assert told.startswith("none; only SPICE needs one. SPICE is left out, because ")


def test_cards_are_told_with_memory_and_bf16(monkeypatch):
    class Card:
        name, total_memory, major = "Some Card", 24 * 2**30, 7

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Card)
    assert dict(doctor.machine_lines())["GPU 0"] == "Some Card, 24 GiB, no bf16 in hardware: leave bf16 off"


def test_the_cache_is_measured(tmp_path, monkeypatch):
    """Two files of 2**29 bytes (without their contents) are a GiB."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    for kind in ("world", "embeddings"):
        (tmp_path / kind).mkdir()
        with (tmp_path / kind / "file").open("wb") as file:
            file.truncate(2**29)
    lines = dict(doctor.cache_lines())
    assert lines["cache"] == f"{tmp_path}: 1.00 GiB (embeddings 0.50, world 0.50)"
    assert lines["world, full"].startswith("built: nothing; built on first use: backbone, ")


def test_what_only_warns_decides_no_number():
    """What ends runs does."""
    written = {"method": "xe", "captioner": {"model_name_or_path": "some/model"}, "training": {"eval_steps": 1}}
    old = Recipe.load(written).key()
    assert Recipe.load(written, {"training.hack_patience": 7}).key() == old
    stopping = [Recipe.load(written, {"training.on_hack": "stop", "training.hack_patience": n}).key() for n in (1, 3)]
    assert len({old, *stopping}) == 3
