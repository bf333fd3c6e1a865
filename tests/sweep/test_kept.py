"""Results of trainings without their weights, in an archive that another machine continues from."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from dataclasses import replace

import pytest

from sweep.study_fakes import finish, note_measured, note_training, refused
from tellapart.errors import UsageError
from tellapart.files import cache_dir, write_json
from tellapart.locks import NAME as LOCK
from tellapart.locks import Lock
from tellapart.recipe.fingerprint import content_of
from tellapart.sweep import trainings
from tellapart.sweep.builds import builds
from tellapart.sweep.kept import COLUMNS, keep, restore
from tellapart.sweep.records import DONE_FILE
from tellapart.sweep.run_study import known, run
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import read_study
from tellapart.sweep.study_page import write_page
from tellapart.sweep.tasks import ASKED_FILE, Sweep, Task, carry_out
from tellapart.world.stages import stage_folder

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
    again = Study(study.file, other, kept=restore(archive, other))
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


def test_what_was_trained_here_stays_and_a_study_reads_its_archive(study, tmp_path):
    archive, other = tmp_path / "kept.tar.xz", tmp_path / "other"
    keep(known(study), archive)
    here = Study(study.file, other).searching()[0]
    note_training(here, {10: {"listener_R@1": 80.0}}, selected=10)
    folder = restore(archive, other)
    read = Study(study.file, other, kept=folder).searching()[0]
    assert (here.on_val()["listener_R@1"], read.on_val()["listener_R@1"]) == (80.0, 9.0)
    assert (read.folder.parent, read.folder.name) == (other / "kept" / "kept", here.folder.name)


def test_the_same_results_are_read_where_their_weights_are(study, tmp_path):
    archive = tmp_path / "kept.tar.xz"
    keep(known(study), archive)
    task = study.measured["b"][1]
    (gone, *_) = task.measures
    (task.folder / gone / "done.json").unlink()
    again = Study(study.file, study.sweep.root, kept=restore(archive, study.sweep.root))
    assert [one.folder for one in known(again)] == [one.folder for one in known(study)]
    assert task.done(), "what it lacked comes from the archive"


def test_a_newer_archive_replaces_what_an_older_one_put_there_but_nothing_that_was_trained_again(study, tmp_path):
    archive, other = tmp_path / "kept.tar.xz", tmp_path / "other"
    keep(known(study), archive)
    restore(archive, other)
    for task in study.searching():
        note_training(task, {10: {"listener_R@1": 33.0, "CIDEr": 1.0, "grammatical": 1.0}}, selected=10)
    keep(known(study), archive)
    first, _ = Study(study.file, other, kept=other / "kept" / "kept").searching()
    (first.folder / "checkpoint-10" / "captioner").mkdir(parents=True)
    with Lock(other / LOCK, "training"):
        restore(archive, other)
    unlocked = Study(study.file, other, kept=other / "kept" / "kept").searching()
    assert [task.on_val()["listener_R@1"] for task in unlocked] == [9.0, 9.0], "another process may be at work there"
    again = Study(study.file, other, kept=restore(archive, other))
    assert [task.on_val()["listener_R@1"] for task in again.searching()] == [9.0, 33.0]
    assert (first.folder / "checkpoint-10" / "captioner").is_dir()


def test_what_a_stopped_process_left_is_no_result(study, tmp_path):
    archive, other = tmp_path / "kept.tar.xz", tmp_path / "other"
    keep(known(study), archive)
    task = Study(study.file, other, kept=restore(archive, other)).searching()[0]
    (task.folder / "metrics.jsonl").write_text('{"step": 10, "eval_lis')
    restore(archive, other)
    assert Study(study.file, other, kept=other / "kept" / "kept").searching()[0].on_val()["listener_R@1"] == 9.0


def test_a_source_that_is_trained_again_drops_the_digest_of_the_one_before(study, tmp_path):
    archive = tmp_path / "kept.tar.xz"
    (task, *_) = study.measured["a"]
    task.captioner().mkdir(parents=True)
    digest = task.captioner().with_name("captioner.digest")
    for content in (b"one", None):
        if content:
            (task.captioner() / "model.safetensors").write_bytes(content)
            task.note_captioner()
        else:
            digest.unlink()
        keep([task], archive)
        with tarfile.open(archive) as tar:
            assert (f"{task.folder.name}/checkpoint-10/captioner.digest" in tar.getnames()) == bool(content)


def test_a_page_that_fails_drops_no_note_from_the_archive(study, tmp_path, monkeypatch, capsys):
    study.noted("probes", lambda: 1)
    study.noted("references", lambda: 2)
    archive = tmp_path / "kept.tar.xz"
    keep(known(study), archive, notes=study.notes.used)
    before = archive.read_bytes()

    def fail(study, docs):
        study.noted("probes", lambda: 1)
        raise UsageError("no room")

    words = ["--output_dir", str(tmp_path / "other"), "--kept", str(archive)]
    with refused(capsys, "no room"):
        run(tmp_path / "p.yaml", write=fail, argv=words)
    assert archive.read_bytes() == before
    with refused(capsys, "no room"):
        run(tmp_path / "p.yaml", write=fail, argv=[*words, "--steps", "60"])
    assert archive.read_bytes() == before


def test_features_are_built_where_a_note_is_missing(study, tmp_path):
    """All trainings came from the archive, so nothing was built before."""
    archive, built = tmp_path / "kept.tar.xz", []
    keep(known(study), archive)

    def prepare(file, size, build):
        built.append(build)
        return file

    def write(study, docs):
        return study.noted("references", lambda: len(built))

    words = ["--output_dir", str(tmp_path / "other"), "--kept", str(archive)]
    run(tmp_path / "p.yaml", prepare=prepare, write=write, argv=words)
    assert built == [False, True]
    run(tmp_path / "p.yaml", prepare=prepare, write=write, argv=words)
    assert built == [False, True, False], "the note was kept"


def test_archives_that_have_the_same_training_do_not_mix(study, tmp_path):
    """Two studies share a training and were carried out by different processors."""
    other = tmp_path / "other"
    for name, recall in (("one", 9.0), ("two", 12.0)):
        for task in study.searching():
            note_training(task, {10: {"listener_R@1": recall, "CIDEr": 1.0, "grammatical": 1.0}}, selected=10)
        keep(known(study), tmp_path / f"{name}.tar.xz")
    read = [Study(study.file, other, kept=restore(tmp_path / f"{name}.tar.xz", other)) for name in ("one", "two")]
    assert [each.searching()[0].on_val()["listener_R@1"] for each in read] == [9.0, 12.0]


def test_what_a_page_tells_of_models_is_made_once_and_kept(study, tmp_path):
    made = []

    def probe():
        made.append(1)
        return {"world/xe": {"shape": 99.5 + len(made)}}

    assert study.noted("probes", probe, {"listener": ["world/xe"]}) == {"world/xe": {"shape": 100.5}}
    archive, other = tmp_path / "kept.tar.xz", tmp_path / "other"
    keep(known(study), archive, whole=True, notes=study.notes.used)
    again = Study(study.file, other, kept=restore(archive, other))
    assert again.noted("probes", probe, {"listener": ["world/xe"]}) == {"world/xe": {"shape": 100.5}}
    assert len(made) == 1
    assert again.noted("probes", probe, {"listener": ["world/judge"]}) == {"world/xe": {"shape": 101.5}}
    assert keep(known(again), archive, notes=again.notes.used) == 7, "notes are no trainings"
    newer = replace(again.file, page="q.md")
    other_page = Study(newer, other, kept=again.sweep.kept)
    assert other_page.noted("probes", probe, {"listener": ["world/xe"]}) == {"world/xe": {"shape": 102.5}}


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
    assert "5 of 6 trainings and measurements are to be done" in capsys.readouterr().err
    with tarfile.open(tmp_path / "x" / "k.xz") as tar:
        assert tar.getnames() == [f"{first.folder.name}/metrics.jsonl", f"{first.folder.name}/trained.json"]
    run(
        tmp_path / "p.yaml",
        argv=["--dry_run", "--output_dir", str(tmp_path / "y"), "--kept", str(tmp_path / "x" / "k.xz")],
    )
    assert capsys.readouterr().out.endswith("1 of 6 are done\n")
    run(
        tmp_path / "p.yaml",
        argv=["--dry_run", "--output_dir", str(tmp_path / "y"), "--kept", str(tmp_path / "z" / "k.xz")],
    )
    assert not (tmp_path / "y").exists(), "a dry run leaves nothing behind"
    assert not (tmp_path / "z").exists()


def test_a_damaged_note_is_named(study):
    study.noted("probes", lambda: 1)
    study.notes.used[0].write_text("{")
    with pytest.raises(UsageError, match=r"p-probes-\w+\.json is damaged \(.*\): delete it"):
        study.noted("probes", lambda: 1)


def test_a_row_that_begins_with_another_ones_captioner_is_found_without_its_weights(study, tmp_path):
    """A file of the archive tells what the captioner was. Where the row is not done, its source is trained again."""
    archive, other = tmp_path / "kept.tar.xz", tmp_path / "other"
    study.file.rows["c"] = replace(study.file.rows["b"], captioner_of="a")
    file, root = study.file, study.sweep.root
    sources = Study(file, root).measured["a"]
    for task in sources:
        task.captioner().mkdir(parents=True)
        (task.captioner() / "model.safetensors").write_bytes(b"%d" % task.seed)
        task.note_captioner()
    for task, source in zip(Study(file, root).measured["c"], sources, strict=True):
        assert task.recipe["captioner"]["model_name_or_path"] == str(source.captioner())
        note_training(task, {10: {"listener_R@1": 9.0}}, selected=10)
        for place in task.measures:
            note_measured(task, place, {"selected": {"CIDEr": 1.0}, "last": {"CIDEr": 1.0}})
    keep(known(Study(file, root)), archive)
    one, weights = Study(file, root), sources[0].captioner() / "model.safetensors"
    folders = []
    for content in (b"others", b"0"):
        weights.write_bytes(content)
        sources[0].note_captioner()
        folders.append(one.task("c", one.chosen("c"), 0, one.file.measures_of("c")).folder)
    assert folders[0] != folders[1] == one.measured["c"][0].folder, "other weights, another key"
    again = Study(file, other, kept=restore(archive, other))
    assert [task.folder.name for task in known(again)] == [task.folder.name for task in known(Study(file, root))]
    assert all(task.done() for task in known(again))
    again._sources()
    assert all(task.done() for task in again.measured["a"])
    (again.measured["c"][0].folder / "trained.json").unlink()
    for place in again.measured["c"][0].measures:
        (again.measured["c"][0].folder / place / "done.json").unlink()
    again._sources()
    assert [task.done() for task in again.measured["a"]] == [False, True], "only the source of the seed that is missing"
    assert not [*again.measured["a"][0].folder.glob("checkpoint-*")], "nothing that a training would resume from"


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
def test_a_place_that_takes_no_archive_is_told_before_anything_is_trained(
    study, tmp_path, kept, says, monkeypatch, capsys
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(Study, "run", lambda self, **options: pytest.fail("trained"))
    with refused(capsys, says):
        run(tmp_path / "p.yaml", argv=["--output_dir", str(tmp_path / "runs"), "--kept", str(tmp_path / kept)])


@pytest.mark.parametrize("workers", ["0", "-1"])
def test_no_worker_is_an_error_and_not_a_study_that_never_ends(study, tmp_path, workers, monkeypatch, capsys):
    monkeypatch.setattr(Study, "run", lambda self, **options: pytest.fail("trained"))
    with refused(capsys, f"--workers is {workers}: it must be at least 1"):
        run(tmp_path / "p.yaml", argv=["--output_dir", str(tmp_path / "runs"), "--workers", workers])


def test_what_was_kept_without_weights_is_trained_once_more_where_it_is_to_be_measured(tmp_path, monkeypatch):
    trained = []

    def train(recipe, folder):
        trained.append(sorted(path.name for path in folder.iterdir()))
        (folder / "checkpoint-4" / "captioner").mkdir(parents=True)
        return {"selected": None, "last": 4}

    monkeypatch.setattr(trainings, "train", train)
    for left in ("checkpoint-4/captioner.digest", "measured/test-1/done.json", "seconds.json"):
        (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / left).write_text("of other weights")
    write_json(tmp_path / ASKED_FILE, {"recipe": {}, "trains": True, "times": False, "measures": {}})
    write_json(tmp_path / "trained.json", {"selected": None, "last": 4})
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 4}))
    for _ in range(2):
        carry_out(tmp_path, tmp_path / ASKED_FILE)
    assert trained == [[ASKED_FILE]], "and not another time"


@pytest.mark.parametrize(
    "name", ["../trained.json", "t/measured/../../../out", "/etc/out", "link", "photos/1.jpg", "a"]
)
def test_archives_of_anybody_write_nothing_elsewhere(tmp_path, name):
    """Nor is another archive of the user's taken for one of results, which would replace it."""
    with tarfile.open(tmp_path / "x.tar.xz", "w:xz") as tar:
        told = tarfile.TarInfo("t/trained.json" if name == "link" else name)
        if name == "link":
            told.type, told.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(told, io.BytesIO())
    with pytest.raises(
        UsageError, match=r"x.tar.xz cannot be read \(.* is not a file of a training\): restore it, or name"
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


def test_a_study_that_continues_with_other_weights_of_the_worlds_models_says_so(study, tmp_path, monkeypatch, capsys):
    """The listener is another one there; the start captioner is the same, and the judge was not built."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))

    def build(stage, weights):
        folder = stage_folder(stage, "full", 0)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(weights)

    build("world/xe", b"one")
    build("world/listener", b"one")
    archive, tasks = tmp_path / "kept.tar.xz", known(study)
    assert set(builds(tasks)) == {"world/xe", "world/listener"}
    study.notes.read("p builds", "weights", lambda: builds(tasks))
    keep(tasks, archive, notes=study.notes.used)
    monkeypatch.setattr(Study, "run", lambda self, **options: None)
    words = ["--output_dir", str(tmp_path / "other"), "--kept", str(archive)]
    run(tmp_path / "p.yaml", write=lambda study, docs: "", argv=words)
    assert capsys.readouterr().err == "", "nothing is trained"
    build("world/listener", b"two")
    (tmp_path / "p.yaml").write_text(FILE + "  c: {recipe: world_ved_scst_clip}\n")
    run(tmp_path / "p.yaml", write=lambda study, docs: "", argv=words)
    said = capsys.readouterr().err
    assert said.startswith(f"note: {archive} has trainings of other weights of world/listener, from another processor.")
    kept = restore(archive, tmp_path / "third") / "notes" / "p-builds-weights.json"
    assert json.loads(kept.read_text()) == study.notes.known("p builds", "weights"), "the first build is kept"


def test_no_changed_byte_of_an_archive_passes(tmp_path):
    """Where tar met a broken header it ended without a word, before the checksum: results were missing, or altered."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for number in range(6):
            content = json.dumps({"metrics": {"CIDEr": number / 7}}).encode()
            told = tarfile.TarInfo(f"t{number}/trained.json")
            told.size = len(content)
            tar.addfile(told, io.BytesIO(content))
    whole = packed.getvalue()
    place = tmp_path / "x.tar.xz"
    place.write_bytes(lzma.compress(whole))
    restore(place, tmp_path / "runs")
    data = place.read_bytes()
    for at in range(0, len(data), 3):
        place.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        with pytest.raises(UsageError, match="cannot be read"):
            restore(place, tmp_path / "other")
    # Headers that were changed before they were packed are no end, either.
    place.write_bytes(lzma.compress(whole[:1030] + b"x" + whole[1031:]))
    with pytest.raises(UsageError, match="cannot be read"):
        restore(place, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("name", "content"), [("trained.json", '{"selected": 0'), ("trained.json", "[1]")])
def test_a_damaged_record_of_a_training_names_the_remedy(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    task = Task("x", tmp_path, 0, 1, {})
    with pytest.raises(UsageError, match=rf"is damaged .* delete {tmp_path} and run the same command again"):
        task.steps_of  # noqa: B018


@pytest.mark.parametrize("content", ["[1]", '{"selected": 3}', '{"selected": {"folder": "x"}}'])
def test_a_damaged_record_of_measurements_is_a_sentence_where_results_are_kept(tmp_path, content):
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / DONE_FILE).write_text(content)
    with pytest.raises(UsageError, match=r"done\.json is damaged"):
        keep([Task("x", tmp_path, 0, 1, {}, trains=False, measures={"measured": {}})], tmp_path / "x.tar.xz")
