"""Results of trainings without their weights, in an archive that another machine continues from."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace

import pytest

from sweep.study_fakes import finish, note_measured, note_training
from tellapart.errors import UsageError
from tellapart.files import cache_dir, write_json
from tellapart.recipe.fingerprint import content_of
from tellapart.sweep import trainings
from tellapart.sweep.kept import COLUMNS, keep, restore
from tellapart.sweep.run_study import known, of_no_other, run
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import read_study
from tellapart.sweep.study_page import write_page
from tellapart.sweep.tasks import ASKED_FILE, Sweep, carry_out

FILE = """
title: A page
page: p.md
probed: []
measure: {num_beams: [1, 5]}
seeds: [0, 1]
tables: {"": {CIDEr: CIDEr}}
rows:
  xe: {start_of: world_ved_scst_cider}
  a: {recipe: world_ved_scst_cider, grid: {training.learning_rate: [1.0e-5, 1.0e-4]}}
  b: {recipe: world_ved_dico}
"""


@pytest.fixture
def study(tmp_path):
    (tmp_path / "p.yaml").write_text(FILE)
    (tmp_path / "p.md").write_text("Why.\n")
    made = Study(read_study(tmp_path / "p.yaml"), tmp_path / "runs")
    on_val = {10: {"listener_R@1": 9.0, "CIDEr": 1.0, "grammatical": 90.0}}
    finish(made, lambda *_: on_val, lambda shown, task, *_: {"CIDEr": 1.0 + task.seed / 3}, selected=10)
    for tasks in made.measured.values():
        for task in tasks:
            for each in made.checkpoints(task).values():
                found = each.result()
                found.per_image.update({"truthful": [1.0], "CIDEr": [0.1]})
                found.save(each.folder.parent.parent)
    return made


def test_pages_are_the_same_without_the_trainings_own_folders(study, tmp_path):
    archive, other = tmp_path / "kept.tar.xz", tmp_path / "other"
    assert keep(known(study), archive) == len({task.folder for task in known(study)}) == 7
    restore(archive, other)
    again = Study(study.file, other)
    assert [task.done() for task in known(again)] == [True] * len(known(study))
    pages = [write_page(each, folder / "p.md").read_bytes() for each, folder in ((study, tmp_path), (again, other))]
    assert pages[0] == pages[1]
    ours, theirs = (each.checkpoints(each.measured["a"][0])["last"].result() for each in (study, again))
    assert (theirs.metrics, theirs.captions) == (ours.metrics, ours.captions)
    assert theirs.per_image == {"truthful": [1.0]}, f"of images only {COLUMNS} are kept"
    before = archive.read_bytes()
    assert keep(known(again), archive) == 7
    assert archive.read_bytes() == before
    with tarfile.open(archive) as tar:
        assert not [name for name in tar.getnames() if "checkpoint-" in name or "asked" in name]


def test_what_is_there_stays(study, tmp_path):
    keep(known(study), tmp_path / "kept.tar.xz")
    trained = Study(study.file, tmp_path / "other").searching()[0]
    note_training(trained, {10: {"listener_R@1": 80.0}}, selected=10)
    restore(tmp_path / "kept.tar.xz", tmp_path / "other")
    assert trained.watched() == {10: {"listener_R@1": 80.0}}
    task = Study(study.file, tmp_path / "other").measured["b"][1]
    place = next(iter(task.measures))
    note_measured(task, place, {"last": {"CIDEr": 7.0}})
    restore(tmp_path / "kept.tar.xz", tmp_path / "other")
    assert task.measured()["last"].metrics == {"CIDEr": 7.0}


def test_a_part_of_a_study_adds_to_what_is_kept_and_a_finished_one_replaces_it(study, tmp_path):
    archive = tmp_path / "kept.tar.xz"
    keep(known(study), archive)
    before = archive.read_bytes()
    assert keep(study.searching(), archive) == 7
    assert archive.read_bytes() == before, "not even a log is shorter"
    assert keep(Study(study.file.seeded([0]), study.sweep.root).measured["b"], archive) == 7
    assert archive.read_bytes() == before
    assert keep(study.searching(), archive, whole=True) == 2


def test_what_half_a_study_came_to_is_kept_when_it_is_stopped(study, tmp_path, monkeypatch, capsys):
    def stopped(self, *, workers):
        raise KeyboardInterrupt("stopped")

    monkeypatch.setattr(Study, "run", stopped)
    first = study.searching()[0]
    for task in known(study):
        if task.folder != first.folder:
            for file in task.folder.rglob("*.json"):
                file.unlink()
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "p.yaml", argv=["--output_dir", str(tmp_path / "runs"), "--kept", str(tmp_path / "x" / "k.xz")])
    assert ended.value.code == 130
    with tarfile.open(tmp_path / "x" / "k.xz") as tar:
        assert tar.getnames() == [f"{first.folder.name}/metrics.jsonl", f"{first.folder.name}/trained.json"]
    run(
        tmp_path / "p.yaml",
        argv=["--dry_run", "--output_dir", str(tmp_path / "y"), "--kept", str(tmp_path / "x" / "k.xz")],
    )
    assert capsys.readouterr().out.endswith("1 of 2 are done\n")


def test_weights_that_another_row_begins_with_are_trained_where_they_are_needed(study):
    study.file.rows["c"] = study.file.rows["b"]
    study.file.rows["b"] = type(study.file.rows["b"])(recipe="world_ved_scst_clip", captioner_of="a")
    names = {task.name.partition(" (")[0] for task in of_no_other(Study(study.file, study.sweep.root))}
    assert names == {"xe", "b", "c"}


def test_a_source_that_another_study_kept_without_weights_is_trained_before_the_row_that_begins_with_it(
    study, monkeypatch
):
    """Studies share a folder of trainings, and an archive of one may hold the source of a row of another."""
    study.file.rows["c"] = replace(study.file.rows["b"], captioner_of="a")
    ran = []

    def done(self, tasks, description, *, workers):
        ran.append({task.name for task in tasks if not task.done()})
        for task in (task for task in tasks if not task.done() and description == "seeds on test"):
            (task.folder / "checkpoint-10" / "captioner").mkdir(parents=True)
            note_training(task, {10: {"listener_R@1": 9.0}}, selected=10)
            for place in task.measures:
                note_measured(task, place, {"selected": {"CIDEr": 1.0}, "last": {"CIDEr": 1.0}})
        return []

    monkeypatch.setattr(Sweep, "run", done)
    Study(study.file, study.sweep.root).run()
    rate = study.chosen("a").overrides["training.learning_rate"]
    assert ran[:2] == [set(), {f"a (learning_rate {rate:g}, seed {seed})" for seed in (0, 1)}]
    assert {name.partition(" (")[0] for name in ran[2]} == {"c"}
    Study(study.file, study.sweep.root).run()
    assert ran[3:5] == [set(), set()], "its weights are there now"


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ("folder", "folder is a folder: name a file for what is kept, such as .*folder.kept.tar.xz"),
        ("file/x", "File exists: .*file"),
    ],
)
def test_a_place_that_takes_no_archive_is_told_before_anything_is_trained(study, tmp_path, kept, says, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(Study, "run", lambda self, **options: pytest.fail("trained"))
    with pytest.raises(SystemExit, match=f"error: .*{says}"):
        run(tmp_path / "p.yaml", argv=["--output_dir", str(tmp_path / "runs"), "--kept", str(tmp_path / kept)])


@pytest.mark.parametrize("workers", ["0", "-1"])
def test_no_worker_is_an_error_and_not_a_study_that_never_ends(study, tmp_path, workers, monkeypatch):
    monkeypatch.setattr(Study, "run", lambda self, **options: pytest.fail("trained"))
    with pytest.raises(SystemExit, match=f"error: --workers is {workers}: it must be at least 1"):
        run(tmp_path / "p.yaml", argv=["--output_dir", str(tmp_path / "runs"), "--workers", workers])


def test_what_was_kept_without_weights_is_trained_once_more_where_it_is_to_be_measured(tmp_path, monkeypatch):
    trained = []

    def train(recipe, folder):
        trained.append(sorted(path.name for path in folder.iterdir()))
        (folder / "checkpoint-4").mkdir()
        return {"selected": None, "last": 4}

    monkeypatch.setattr(trainings, "train", train)
    write_json(tmp_path / ASKED_FILE, {"recipe": {}, "trains": True, "times": False, "measures": {}})
    write_json(tmp_path / "trained.json", {"selected": None, "last": 4})
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 4}))
    for _ in range(2):
        carry_out(tmp_path, tmp_path / ASKED_FILE)
    assert trained == [[ASKED_FILE]], "and not another time"


@pytest.mark.parametrize("name", ["../out", "/etc/out", "link"])
def test_archives_of_anybody_write_nothing_elsewhere(tmp_path, name):
    with tarfile.open(tmp_path / "x.tar.xz", "w:xz") as tar:
        told = tarfile.TarInfo(name)
        if name == "link":
            told.type, told.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(told, io.BytesIO())
    with pytest.raises(
        UsageError, match=r"x.tar.xz cannot be read \(.* is not a file of a training\): restore or delete"
    ):
        restore(tmp_path / "x.tar.xz", tmp_path / "runs")
    (tmp_path / "x.tar.xz").write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"x.tar.xz cannot be read"):
        restore(tmp_path / "x.tar.xz", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_features_of_the_world_count_by_what_made_them(tmp_path, monkeypatch):
    """As stages do: a study that continues on another machine finds what it trained on features computed elsewhere."""
    told = []
    for machine in ("one", "two"):
        monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / machine))
        for folder in (cache_dir() / "world" / "features" / "full-backbone-abc", tmp_path / f"own-{machine}"):
            folder.mkdir(parents=True)
            (folder / "features.npy").write_bytes(machine.encode())
            told.append(content_of(str(folder), "full"))
    assert told[0] == told[2] == "features full-backbone-abc"
    assert told[1] != told[3]
