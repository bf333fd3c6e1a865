"""Nothing that was journalled is lost, and nothing torn is believed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioning.captioning_fakes import draw, items, read
from tellapart.captioning.collection import Pace, Progress, caption_items, captioned
from tellapart.captioning.journal import Journal, read_journal
from tellapart.captioning.records import Caption
from tellapart.captioning.serve import Station
from tellapart.captioning.work import Work, run_of, was_finished
from tellapart.errors import UsageError

CAPTIONS = [
    Caption(
        "a/1.jpg", "ein Hund\nauf dem Bett", "ein Hund", flags=("loop", "opener"), score=0.5, match=0.25, attempt=2
    ),
    Caption("2", "狗", candidates=(("狗", 1.5), ("a dog", -1.0))),
    Caption("3", error="3 is no image: remove it."),
    Caption("4", ""),
    Caption("5", "new", text="old\nnew"),
]


def filled(path):
    with Journal(path) as journal:
        journal.append(CAPTIONS[:2])
        journal.append(CAPTIONS[2:])
    return path


def test_what_is_written_is_read(tmp_path):
    path = filled(tmp_path / "journal-0.jsonl")
    assert read_journal(path) == (CAPTIONS, CAPTIONS[2:])
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_torn_batch_is_dropped_wherever_it_is_torn(tmp_path):
    path = filled(tmp_path / "journal-0.jsonl")
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        lines = data[:cut].count(b"\n")
        whole = lines if lines == len(CAPTIONS) else 2 * (lines >= 2)
        with Journal(path) as journal:
            journal.append([Caption("next", "new")])
        captions, last = read_journal(path)
        assert captions == [*CAPTIONS[:whole], Caption("next", "new")]
        assert last == [Caption("next", "new")]


def test_a_line_that_was_damaged_later_is_named(tmp_path):
    path = filled(tmp_path / "journal-0.jsonl")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:9], *lines[2:]]))
    with pytest.raises(UsageError, match=r"journal-0.jsonl, line 2 is damaged .*: delete the line"):
        Journal(path)


def test_a_batch_that_lost_a_line_is_drawn_again_whole(tmp_path):
    path = filled(tmp_path / "journal-0.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    assert read_journal(path) == (CAPTIONS[2:], CAPTIONS[2:])
    with Journal(path) as journal:
        journal.append([Caption("next", "new")])
    assert read_journal(path) == ([*CAPTIONS[2:], Caption("next", "new")], [Caption("next", "new")])


def test_journals_of_before_do_not_say_how_many_lines_a_batch_has(tmp_path):
    path = filled(tmp_path / "journal-0.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "of"}) + "\n" for row in rows[:3]))
    assert read_journal(path) == (CAPTIONS[:3], CAPTIONS[2:3])


def test_a_stop_changes_no_caption(tmp_path):
    """Wherever the journal was torn, images are drawn in the batches of an undisturbed run."""

    def build(rank, processes):
        return Station(read, lambda batch, _: [Caption(name, ", ".join(batch.ids)) for name in batch.ids])

    def captions(folder):
        work = Work(folder, {})
        pace = Pace(batch_size=3, threads=0, by_size=False)
        caption_items(items(9), build, pace, report=lambda caption: None, work=work)
        work.close()
        return {name: caption.caption for name, caption in work.drawn().items()}

    whole = captions(tmp_path / "whole")
    data = (tmp_path / "whole" / "journal-0.jsonl").read_bytes()
    for number, cut in enumerate(range(0, len(data) + 1, 11)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "settings.json").write_text("{}")
        (folder / "journal-0.jsonl").write_bytes(data[:cut])
        assert captions(folder) == whole


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(TEXT, TEXT, st.lists(st.sampled_from(["loop", "empty"]), unique=True), st.none() | st.floats(-9, 9))
def test_any_caption_survives(name, text, flags, score):
    caption = Caption(name, text, text, tuple(flags), score, text=text or None)
    assert Caption.from_json(json.loads(json.dumps(caption.as_json()))) == caption


HOLDER = """
import sys, time
from pathlib import Path
from tellapart.captioning.journal import Journal
journal = Journal(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_two_processes_never_write_one_journal(tmp_path, monkeypatch):
    path = filled(tmp_path / "journal-0.jsonl")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path, "600"], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        monkeypatch.setattr("tellapart.captioning.journal.PATIENCE", 0.2)
        with pytest.raises(UsageError, match=r"another process is captioning into"):
            Journal(path)
    finally:
        holder.kill()
        holder.wait()
    Journal(path).close()  # a killed process holds nothing


def test_a_run_goes_on_only_with_its_own_settings(tmp_path):
    settings = {"num_beams": 5, "captioner": "x (abc)", "prompt": None}
    work = Work(tmp_path / "w", settings)
    with Journal(work.journal(0)) as journal:
        journal.append(CAPTIONS)
    with pytest.raises(UsageError, match=r"another process is captioning"):
        Work(tmp_path / "w", settings)
    work.close()
    again = Work(tmp_path / "w", settings)
    assert list(again.done) == ["a/1.jpg", "2", "4", "5"], "an image that could not be read is tried again"
    again.close()
    for changed, said in (
        ({"num_beams": 1}, "--num_beams 5, not --num_beams 1: give the same options"),
        ({"prompt": "say"}, "no --prompt, not --prompt say"),
    ):
        with pytest.raises(UsageError, match=said):
            Work(tmp_path / "w", settings | changed)
    assert Work(tmp_path / "w", settings | {"num_beams": 1}, overwrite=True).done == {}


def test_overwriting_goes_on_with_a_run_of_the_same_settings(tmp_path):
    settings = {"num_beams": 5}
    work = Work(tmp_path / "w", settings, overwrite=True)
    with Journal(work.journal(0)) as journal:
        journal.append(CAPTIONS)
    work.close()
    assert len(Work(tmp_path / "w", settings, overwrite=True).done) == 4


def test_a_kill_before_anything_was_drawn_is_no_hindrance(tmp_path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "lock").touch()
    Work(tmp_path / "w", {"num_beams": 1}).close()
    assert json.loads((tmp_path / "w" / "settings.json").read_text()) == {"num_beams": 1}


def test_a_journal_that_somebody_removed_is_told_at_the_next_batch(tmp_path):
    """An open file takes what is written to it after it was removed: all of it would be lost."""
    (tmp_path / "w").mkdir()
    with Journal(tmp_path / "w" / "journal-0.jsonl") as journal:
        journal.append(CAPTIONS[:2])
        shutil.rmtree(tmp_path / "w")
        with pytest.raises(FileNotFoundError, match=r"journal-0\.jsonl"):
            journal.append(CAPTIONS[2:])


def test_captions_that_were_drawn_must_be_found(tmp_path):
    some = items(6)
    work, progress = Work(tmp_path / "w", {}), Progress()
    caption_items(
        some, lambda *_: Station(read, draw), Pace(batch_size=2), report=lambda _: None, work=work, progress=progress
    )
    assert len(captioned(some, work, progress)) == 6
    work.journal(0).write_bytes(b"".join(work.journal(0).read_bytes().splitlines(keepends=True)[:4]))
    with pytest.raises(UsageError, match=r"holds 4 of 6 captions, and nothing was written"):
        captioned(some, work, progress)


@pytest.mark.parametrize("point", range(6))
def test_a_kill_while_a_finished_run_is_removed_leaves_all_or_nothing(tmp_path, monkeypatch, point):
    """Stopped after ``point`` removals: the same options find a whole run or a finished one, never a half."""
    work = Work(tmp_path / "w", {"num_beams": 5})
    with Journal(work.journal(0)) as journal:
        journal.append(CAPTIONS)
    removed, unlink, run, ended = [], os.unlink, run_of({"num_beams": 5}, ["a"]), []

    def killed(path, **options):
        if len(removed) == point:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path, **options)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(os, "unlink", killed)
        work.remove(run)
        ended.append(True)
    work.close()
    assert was_finished(tmp_path / "w", run) != ((tmp_path / "w").is_dir() or bool(ended))
    assert not was_finished(tmp_path / "w", run_of({"num_beams": 5}, ["a", "b"]))
    again = Work(tmp_path / "w", {"num_beams": 5})
    assert len(again.done) in (0, 4)
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == ["w"], "what the kill left is tidied"


def test_a_run_that_ends_leaves_the_folder_of_a_run_that_begins(tmp_path, monkeypatch):
    """The next run may take the name as soon as the lock is released."""
    work = Work(tmp_path / "c.work", {"n": 1})
    release = work._lock.release

    def releasing():
        release()
        (tmp_path / "c.work").mkdir(exist_ok=True)
        (tmp_path / "c.work" / "journal-0.jsonl").touch()

    monkeypatch.setattr(work._lock, "release", releasing)
    work.remove(run_of({"n": 1}, []))
    assert [path.name for path in tmp_path.rglob("*")] == ["c.work", "journal-0.jsonl"]
