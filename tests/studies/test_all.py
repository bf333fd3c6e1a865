"""All studies in one command."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from sweep.study_fakes import ROOT, STUDIES, module


@pytest.fixture
def every():
    return module("all")


def run(every, monkeypatch, words, codes):
    """Runs it with studies that end with ``codes`` (name -> code; 0 by default); the exit code, and the commands."""
    commands = []

    def study(command, check):
        commands.append(command)
        return SimpleNamespace(returncode=codes.get(command[1].rpartition("/")[2].removesuffix(".py"), 0))

    monkeypatch.setattr(subprocess, "run", study)
    with pytest.raises(SystemExit) as ended:
        every.main(words)
    return ended.value.code, commands


def test_every_study_of_the_world_is_run(every):
    assert set(every.STUDIES) == {path.stem for path in STUDIES.glob("*.yaml")} - {
        "nlvr"
    }  # which needs a folder of data
    assert all((STUDIES / f"{name}.py").is_file() for name in (*every.STUDIES, *every.OTHERS))
    assert module("frontier").TABLES == every.FRONTIER_TABLES


def test_a_study_that_fails_does_not_stop_the_others(every, monkeypatch, tmp_path, capsys):
    page = "Trainings have 60 steps.\nThe 15 trainings took 0.2\nhours of one thread.\n"
    (tmp_path / "world-video.md").write_text(page)
    code, commands = run(every, monkeypatch, ["--docs", str(tmp_path), "--size", "small"], {"world": 1})
    said = capsys.readouterr().out
    assert code == 1
    assert len(commands) == len(every.STUDIES) + len(every.OTHERS)
    assert "| world | - | - | - | failed with 1 |" in said
    assert "| video | 15 | - | 0.2 |  |" in said
    assert "| pac | 0 | - | - |  |" in said
    small = ["--docs", str(tmp_path), "--size", "small"]
    assert commands[0] == [
        sys.executable,
        str(STUDIES / "world.py"),
        "--output_dir",
        "runs/study",
        *small,
        "--workers",
        "2",
    ]
    assert commands[-1] == [sys.executable, str(STUDIES / "pac.py"), "--output_dir", "runs/study", *small]


def docs_with_marks(folder):
    """A folder of pages, next to the page that takes the table; the latter's path, too."""
    page = folder / "how-to" / "studies.md"
    page.parent.mkdir()
    page.write_text("Before.\n<!-- hours: begin -->\nold\n<!-- hours: end -->\nAfter.\n")
    docs = folder / "results"
    docs.mkdir()
    (docs / "world-video.md").write_text("The 36 trainings took 0.1 hours of one thread.\n")
    return docs, page


def test_the_table_is_written_where_all_studies_ended_well(every, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(every, "kept_trainings", lambda: {"video": {"a", "b"}, "sle": {"b", "c"}, "pac": set()})
    docs, page = docs_with_marks(tmp_path)
    run(every, monkeypatch, ["--docs", str(docs)], {"sle": 1})
    run(every, monkeypatch, ["--docs", str(docs), "--size", "small"], {})
    assert "\nold\n" in page.read_text()
    run(every, monkeypatch, ["--docs", str(docs)], {})
    lines = page.read_text().splitlines()
    assert lines[0] == "Before."
    assert "| study | trainings | of these also in other studies | hours of one thread |" in lines
    assert "| `video` | 36 | 1 | 0.1 |" in lines
    assert "| `pac` | 0 | 0 | - |" in lines
    assert lines[-1] == "After."
    assert "old" not in lines


def test_hours_runs_nothing(every, monkeypatch, tmp_path):
    docs, page = docs_with_marks(tmp_path)
    monkeypatch.setattr(subprocess, "run", None)
    every.main(["--docs", str(docs), "--hours"])
    assert "| `video` | 36 | 0 | 0.1 |" in page.read_text()


def test_the_table_of_hours_is_that_of_the_pages(every, tmp_path):
    """``python studies/all.py --hours`` writes it again."""
    written = (ROOT / "docs" / "how-to" / "studies.md").read_text()
    (tmp_path / "how-to").mkdir()
    page = tmp_path / "how-to" / "studies.md"
    page.write_text(written)
    (tmp_path / "results").symlink_to(ROOT / "docs" / "results")
    every.main(["--docs", str(tmp_path / "results"), "--hours"])
    assert page.read_text() == written


def test_a_dry_run_lists_and_ctrl_c_ends_all(every, monkeypatch, capsys):
    code, commands = run(every, monkeypatch, ["--dry_run"], {})
    assert code == 0
    assert all(command[-1] == "--dry_run" for command in commands)
    assert len(commands) == len(every.STUDIES) + 1
    assert commands[-1][1] == str(STUDIES / "frontier.py")
    assert commands[-1][-3:-1] == ["--kept", str(STUDIES / "kept" / "frontier.tar.xz")]
    code, commands = run(every, monkeypatch, [], {"truth": 130})
    assert code == 130
    assert len(commands) == 2
