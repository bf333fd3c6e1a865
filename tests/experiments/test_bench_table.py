"""The table over everything: who dominates whom, on numbers small enough to check by eye."""

import json
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from small_meteor import write_data
from tellapart.cli import main as cli
from tellapart.errors import UsageError
from tellapart.evaluation.protocol import Protocol, data_digest, software
from tellapart.evaluation.results import EvaluationResult
from tellapart.experiments import study_vlrm
from tellapart.experiments.bench import entries, measure, seconds
from tellapart.experiments.bench.bench import Bench
from tellapart.experiments.bench.entries import ENTRIES, Entry, entries_of
from tellapart.experiments.bench.page import _head, write
from tellapart.experiments.bench.picture import draw
from tellapart.experiments.bench.stored import sampled
from tellapart.experiments.bench.table import COLUMNS, PLANE, TOGETHER, Line, dominates, front, table
from tellapart.experiments.study import PLANS, Study
from tellapart.experiments.study_vlrm import IMAGES, STEPS
from tellapart.experiments.world import World
from tellapart.experiments.world_rows import STARTS
from tellapart.experiments.world_run import ROWS, TRAINED, Setting
from tellapart.metrics import meteor_data
from tellapart.objectives import METHODS
from tellapart.world import load_world

BASE = Setting(row="xe")


def line(name, cider, exact, grammatical=100.0, seconds=1.0):
    """Two seeds around the means."""
    seeds = [dict.fromkeys(COLUMNS, 1.0) for _ in range(2)]
    for one, away in zip(seeds, (-0.01, 0.01), strict=True):
        one.update({"CIDEr": cider + away, "exact_recall@1": exact + away, "grammatical": grammatical})
    return Line(name, seeds, seconds)


A, B, C, D = line("a", 1.0, 30.0), line("b", 2.0, 20.0), line("c", 1.0, 20.0), line("d", 2.0, 25.0, 90.0)


def test_a_row_dominates_another_that_is_nowhere_better():
    assert dominates(A, C, PLANE)
    assert dominates(B, C, PLANE)
    assert not dominates(A, B, PLANE)
    assert not dominates(B, A, PLANE)
    assert not dominates(A, A, PLANE)
    assert dominates(D, B, PLANE)
    assert not dominates(D, B, TOGETHER)  # it is less grammatical


def test_the_front_is_what_none_dominates():
    assert front([A, B, C], PLANE) == {"a", "b"}
    assert front([A, B, C, D], PLANE) == {"a", "d"}
    assert front([A, B, C, D], TOGETHER) == {"a", "b", "d"}


def test_the_table_marks_and_counts():
    rows = {text.split("|")[1].strip(): text for text in table([A, B, C, D]).splitlines()[2:]}
    assert set(rows) == {"a *", "b", "c", "d *"}
    cells = [cell.strip() for cell in rows["a *"].split("|")]
    assert "100.0 ± 1.4" in cells  # CIDEr 0.99 and 1.01, times 100: the deviation of two values 2 apart is sqrt(2)
    assert cells[-4:-1] == ["1.00", "1", "0"]
    assert [cell.strip() for cell in rows["c"].split("|")][-3:-1] == ["0", "2"]  # a and b, not d
    missing = Line("e", [{"CIDEr": 1.0, "exact_recall@1": 1.0, "grammatical": 1.0}])
    assert "| - |" in table([missing])


def test_every_entry_is_a_row_of_a_method():
    for entry in ENTRIES:
        assert entry.method in METHODS
        assert entry.row in {**STARTS, **ROWS}
        if entry.row in ROWS:
            assert entry.knob is None or ROWS[entry.row].knob
    assert len({entry.row for entry in ENTRIES}) == len(ENTRIES)


def test_words_choose_rows():
    assert entries_of(["all"]) == list(ENTRIES)
    of_dico = ["xe", "dico", "dico-PAC", "dico-CIDEr", "dico-NegCLIP+CIDEr"]
    assert [entry.row for entry in entries_of(["dico"])] == of_dico
    assert [entry.row for entry in entries_of(["dico-PAC"])] == ["xe", "dico-PAC"]
    assert {entry.method for entry in entries_of(["scst"])} == {"xe", "scst"}
    assert [entry.row for entry in entries_of(["scst-CLIP"])] == ["xe", "scst-CLIP"]
    with pytest.raises(UsageError, match="nosuch"):
        entries_of(["nosuch"])


def test_a_row_brings_the_captioner_that_it_begins_with(monkeypatch):
    first, blip2 = ENTRIES[0], Entry("blip2", "xe", 1e-4, "world-vlrm.md", images=IMAGES)
    vlrm = Entry("vlrm", "vlrm", 1e-4, "world-vlrm.md", steps=STEPS, images=IMAGES)
    monkeypatch.setattr(entries, "ENTRIES", (first, Entry("dico", "dico", 3e-5, "world.md", 0.2), blip2, vlrm))
    assert [entry.row for entry in entries_of(["vlrm"])] == ["xe", "blip2", "vlrm"]
    assert [entry.row for entry in entries_of(["dico"])] == ["xe", "dico"]
    base = Setting(row="xe", steps=60)
    assert vlrm.otherwise(base) == "from blip2, 40 steps of 512 images"
    assert [first.otherwise(base), blip2.otherwise(base), entries_of(["dico"])[1].otherwise(base)] == ["", "", ""]
    # the study's own settings, so that what it trained is found
    study = study_vlrm.make(study_vlrm.PLAN, Path("runs"), Setting(row="xe", steps=STEPS))
    assert vlrm.setting(base, 0) == next(one for one in study.grid("vlrm") if one.learning_rate == 1e-4)
    assert blip2.setting(base, 0).key() == study.chosen("blip2").key()


def test_rows_are_points_of_their_study():
    """A row that no study has tried would be trained at a point that nobody has chosen."""
    modules = [import_module(module) for module in PLANS.values()]
    of_page = {module.PLAN.page: getattr(module, "make", Study)(module.PLAN, Path(), BASE) for module in modules}
    for entry in ENTRIES:
        study = of_page[entry.page]
        if entry.row in ROWS:
            assert entry.row in {*study.plan.rows, *study.plan.on_val}
            assert entry.knob in ROWS[entry.row].values
            assert entry.learning_rate in (ROWS[entry.row].learning_rates or study.learning_rates)
            assert entry.setting(BASE, 0).images == study.base.images
        else:
            assert entry.row in study.plan.starts


@pytest.fixture
def measured(tmp_path):
    """A training of dico on the small world as a study leaves it, with captions that are references."""

    def make(selected_step, *, longest=38, lacking="METEOR", **otherwise):
        setting = Setting(row="dico", learning_rate=3e-5, knob=0.2, steps=4, size="small")
        data = load_world("test", size="small")
        captions = {image_id: texts[0] for image_id, texts in data.references.items()}
        drawn = f"greedy, max_new_tokens={longest}"
        protocol = replace(Protocol(data.name, len(data), data_digest(data.references), drawn), **otherwise)
        for value, point in enumerate(("selected", "last")):
            metrics = {key: float(value) for key in COLUMNS if key not in ("METEOR", lacking, "rs5_mBLEU-4")}
            EvaluationResult("dico", protocol, metrics, captions, {}).save(tmp_path / point)
        (tmp_path / "checkpoint-4").mkdir()
        (tmp_path / "checkpoint-4" / "trainer_state.json").write_text("{}")
        (tmp_path / TRAINED).write_text(json.dumps({"selected_step": selected_step}))
        sets = {"selected": {"sets": {"rs5_mBLEU-4": 0.25, "bs5_mBLEU-4": 0.5}}}
        (tmp_path / "done_meteor_sets.json").write_text(json.dumps({"setting": asdict(setting), "test": sets}))
        return setting

    return make


def test_what_a_study_measured_is_taken(measured, tmp_path, monkeypatch, few_words):
    monkeypatch.setattr(World, "load", None)  # no model is loaded
    measure.measure(measured(2), tmp_path)
    kept = json.loads((tmp_path / measure.MEASURED).read_text())
    found = kept["test"]
    assert kept["protocol"] == measure.protocol_of("small")
    assert (found["selected"]["CIDEr"], found["last"]["CIDEr"]) == (0.0, 1.0)
    assert found["selected"]["rs5_mBLEU-4"] == 0.25
    assert "bs5_mBLEU-4" not in found["selected"]
    assert found["selected"]["METEOR"] == found["last"]["METEOR"] > 0.9  # every caption is a reference of its image


def test_the_last_step_is_not_measured_twice(measured, tmp_path, monkeypatch, few_words):
    monkeypatch.setattr(World, "load", None)
    measure.measure(measured(4), tmp_path)
    found = json.loads((tmp_path / measure.MEASURED).read_text())["test"]
    assert found["last"] == {key: value for key, value in found["selected"].items() if key != "rs5_mBLEU-4"}


class AsksForModels(Exception):
    pass


@pytest.fixture
def no_models(monkeypatch):
    def refuse(*_):
        raise AsksForModels

    monkeypatch.setattr(measure.Trained, "_parts", refuse)


@pytest.mark.parametrize(
    "otherwise",
    [{"longest": 20}, {"digest": "00000000"}, {"software": "tellapart 0.0.1"}, {"lacking": "truthful"}],
    ids=lambda value: next(iter(value)),
)
def test_what_was_measured_otherwise_is_measured_anew(measured, tmp_path, no_models, few_words, otherwise):
    """All but the first are saved in the folder where an evaluation that may be taken would lie."""
    trained = measure.Trained(measured(2, **otherwise), tmp_path)
    with pytest.raises(AsksForModels):
        trained.greedy("selected")
    with pytest.raises(AsksForModels):  # its marker does not say how, and what was saved with it was measured otherwise
        trained.samples()


def test_what_is_measured_anew_leaves_what_the_study_saved(measured, tmp_path, monkeypatch, few_words):
    setting = measured(2, software="tellapart 0.0.1")
    (saved,) = (tmp_path / "selected" / "eval").iterdir()
    before = EvaluationResult.load(saved)
    fresh = replace(before, protocol=replace(before.protocol, software=software()), metrics=dict.fromkeys(COLUMNS, 7.0))
    parts = SimpleNamespace(captioner=None, evaluation=lambda split: lambda captioner, name: fresh)
    with monkeypatch.context() as patched:
        patched.setattr(measure.Trained, "_parts", lambda *_: parts)
        assert measure.Trained(setting, tmp_path).greedy("selected")["CIDEr"] == 7.0
    assert EvaluationResult.load(saved).metrics == before.metrics
    monkeypatch.setattr(World, "load", None)  # found again
    assert measure.Trained(setting, tmp_path).greedy("selected")["CIDEr"] == 7.0


def test_samples_are_taken_of_the_same_training_measured_in_the_same_way(measured, tmp_path):
    setting, marker = measured(2), tmp_path / "done_meteor_sets.json"
    asked = {key: value for key, value in measure.protocol_of("small").items() if key != "greedy"}
    assert asked["rs5"] == "sampled, seed 0, max_new_tokens=38"

    def found(*, unsigned=False, of=setting, **noted):
        value = json.loads(marker.read_text())
        value.pop("protocol", None)
        marker.write_text(json.dumps(value | ({"protocol": asked | noted} if noted else {})))
        return sampled(tmp_path, of, "rs5", asked, unsigned=unsigned)

    assert found(unsigned=True) == {"rs5_mBLEU-4": 0.25}
    assert found() is None  # it does not say how
    assert found(bs5="beam 5") == {"rs5_mBLEU-4": 0.25}
    assert found(bs5="beam 5", of=replace(setting, seed=1)) is None
    assert found(unsigned=True, of=replace(setting, steps=5)) is None
    for name, other in {"rs5": "sampled", "digest": "00000000", "software": "tellapart 0.0.1"}.items():
        assert found(unsigned=True, **{name: other}) is None


def test_a_row_of_another_version_is_not_done(measured, tmp_path):
    job = measure.job(measured(2), tmp_path)
    job.folder.mkdir()
    for name, other in ({"": ""} | measure.protocol_of("small")).items():
        noted = measure.protocol_of("small") | ({name: other + "1"} if name else {})
        (job.folder / measure.MEASURED).write_text(json.dumps({"protocol": noted, "test": {}}))
        assert job.done() == (not name)


def finished(bench, entry, seed, metrics):
    folder = bench.root / entry.setting(bench.base, seed).key()
    folder.mkdir(parents=True)
    (folder / measure.MEASURED).write_text(json.dumps({"test": {"selected": metrics, "last": metrics}}))


def test_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [Entry("xe", "xe", 1e-4, "world.md"), Entry("dico", "dico", 3e-5, "world.md", 0.2)]
    inherited = Entry("dico-PAC", "dico", 3e-5, "world-dico.md")
    assert "not searched: `dico-PAC` (of `dico`)" in _head(Bench([*rows, inherited], tmp_path, BASE))
    bench = Bench(rows, tmp_path / "runs", Setting(row="xe", size="small"), (0, 1))
    assert len(bench.missing()) == 4
    for entry, recall in zip(rows, (20.0, 30.0), strict=True):
        for seed in bench.seeds:
            finished(bench, entry, seed, dict.fromkeys(COLUMNS, recall + seed))
    assert not bench.missing()
    timed = seconds.job(rows[1].setting(bench.base, 0), bench.root)
    timed.folder.mkdir(parents=True)
    (timed.folder / seconds.SECONDS).write_text(json.dumps({"seconds": 0.5}))
    page = write(bench, tmp_path / "docs").read_text()
    assert "| dico * | 30.5 ± 0.7 |" in page
    assert "not searched" not in page
    assert "| 0.50 | 1 | 0 |" in page
    assert "| - | 0 | 1 |" in page
    assert "| dico | `dico` | xe | 60 | 48 | 3e-05 | beta 0.2 | [world.md](world.md) |" in page
    assert "| xe | `xe` | - | - | - | - | - | [world.md](world.md) |" in page
    assert (tmp_path / "docs" / "leaderboard.png").stat().st_size > 10_000


def test_what_the_command_refuses(capsys):
    for words, said in (([], "one word"), (["moon"], "one word"), (["world", "--seeds", "0"], "--seeds")):
        assert cli.main(["bench", *words]) == 2
        assert said in capsys.readouterr().err


@pytest.fixture
def few_words(tmp_path_factory, monkeypatch):
    """METEOR with a table of a few lines, since compiling the whole one takes most of a minute."""
    folder = write_data(tmp_path_factory.mktemp("meteor"))
    monkeypatch.setattr(meteor_data, "source", lambda: folder)
    meteor_data.load_resources.cache_clear()
    yield
    meteor_data.load_resources.cache_clear()


@pytest.mark.slow
def test_a_row_is_trained_measured_and_timed(tmp_path, few_words):
    setting = Setting(row="scst-CLIP", steps=2, images=16, eval_steps=2, size="small")
    measure.measure(setting, tmp_path)
    found = json.loads((tmp_path / measure.MEASURED).read_text())["test"]
    assert set(found) == {"last", "selected"}
    assert set(COLUMNS) <= set(found["selected"])
    seconds.time_steps(setting, tmp_path)
    assert 0 < json.loads((tmp_path / seconds.SECONDS).read_text())["seconds"] < 100


def test_a_picture_is_the_same_bytes_when_drawn_again(tmp_path):
    lines = [
        Line(name, [dict.fromkeys(COLUMNS, place + seed) for seed in (0.0, 0.5)]) for place, name in enumerate("ab")
    ]
    first = [path.read_bytes() for path in draw(tmp_path / "first", lines)]
    assert [path.read_bytes() for path in draw(tmp_path / "again", lines)] == first
