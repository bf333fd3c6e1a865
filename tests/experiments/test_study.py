"""The study's bookkeeping: what is chosen on val, what is measured, and what its page says. Nothing is trained."""

import json
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from tellapart.experiments import study_page, world_run
from tellapart.experiments.study import PLANS, Study
from tellapart.experiments.study_plan import Claim, Plan, Reader, Seeds
from tellapart.experiments.world import World
from tellapart.experiments.world_run import ROWS, Setting, _selected, marker_of
from tellapart.world.schedules import STAGES

RATES = (1e-5, 1e-4)
VAL = {("a", 1e-5): 30.0, ("a", 1e-4): 50.0, ("b", 1e-5): 40.0, ("b", 1e-4): 40.0}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Two rows, two rates, three seeds, all of it noted by hand."""
    for module in ("study", "world_run"):
        rows = {"a": ROWS["scst-CIDEr"], "b": ROWS["scst-CLIP"]}
        monkeypatch.setattr(f"tellapart.experiments.{module}.ROWS", rows)

    def claims(study):
        reader = Reader(study)
        ours, start = reader.metric("a", "CIDEr", factor=100), reader.metric("xe", "CIDEr", factor=100)
        return [Claim("a is above xe.", ours.above(start), f"{ours} against {start}.")]

    plan = Plan("p.md", "A page", "Why.", ("a", "b"), {"": {"CIDEr": ("CIDEr", 100.0)}}, claims)
    study = Study(plan, tmp_path, Setting(row="xe", size="small"), learning_rates=RATES)
    for row in plan.rows:
        for setting in study.grid(row):
            val = {"listener_R@1": VAL[row, setting.learning_rate], "CIDEr": 1.0, "grammatical": 90.0}
            note(study, setting, "trained.json", {"val": val, "val_last": val, "selected_step": 10})
    for _, settings in study.measured():
        for setting in settings:
            value = {"xe": 1.0, "a": 2.0, "b": 0.5}[setting.row] + 0.1 * setting.seed
            points = ("selected",) if setting.row == "xe" else ("selected", "last")
            tested = {p: {d: {"CIDEr": value} for d in ("greedy", "beam5")} for p in points}
            note(study, setting, marker_of(), {"test": tested})
    return study


def note(study, setting, name, content):
    folder = study.root / setting.key()
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def test_the_best_rate_on_val_is_chosen_and_the_lower_on_a_tie(study):
    assert study.chosen("a").learning_rate == 1e-4
    assert study.chosen("b").learning_rate == 1e-5
    assert study.chosen("xe").steps == 0


def test_every_seed_of_the_chosen_point_is_measured(study):
    measured = dict(study.measured())
    assert list(measured) == ["xe", "a", "b"]
    assert [(s.seed, s.learning_rate) for s in measured["a"]] == [(0, 1e-4), (1, 1e-4), (2, 1e-4)]
    assert len(study.jobs([*measured["a"], *measured["a"]], test=True)) == 3


def test_settings_are_told_apart_and_found_again():
    setting = Setting(row="dico", knob=0.2)
    others = [replace(setting, seed=1), replace(setting, knob=0.5), replace(setting, learning_rate=1e-3)]
    assert len({s.key() for s in [setting, *others]}) == 4
    assert replace(setting).key() == setting.key()


def test_the_page_has_means_spreads_and_verdicts(study, monkeypatch):
    monkeypatch.setattr(study_page, "_probe", lambda study: "probe")
    study_page.write_page(study, study.root / "p.md", references={"human": {"CIDEr": 1.5}})
    text = (study.root / "p.md").read_text()
    spread = 100 * stdev([2.0, 2.1, 2.2])
    assert f"| a | selected | {100 * fmean([2.0, 2.1, 2.2]):.1f} ± {spread:.1f} |" in text
    assert "| xe | - |" in text
    assert "| *human* | - | 150.0 |" in text
    assert "**Holds**: a is above xe. Measured: 210.0 ± 10.0 against 110.0 ± 10.0." in text
    assert "**0.0001**" in text


def test_an_ordering_needs_every_seed():
    assert Seeds([3.0, 4.0]).above(Seeds([1.0, 2.9]))
    assert not Seeds([3.0, 9.0]).above(Seeds([1.0, 3.0]))


def test_selection_takes_the_best_recall_above_the_floor():
    lines = [
        {"step": step, "eval_CIDEr": cider, "eval_listener_R@1": recall}
        for step, cider, recall in [(0, 1.0, 20.0), (10, 0.7, 40.0), (20, 0.59, 80.0), (30, 0.65, 30.0)]
    ]
    noted = _selected([*lines, {"step": 30, "loss": 1.0}])
    assert noted["selected_step"] == 10
    assert noted["val_last"]["listener_R@1"] == 30.0


@pytest.mark.parametrize("name", PLANS)
def test_plans_name_known_rows(name):
    from importlib import import_module

    plan = import_module(PLANS[name]).PLAN
    assert set(plan.rows) <= set(ROWS)
    assert plan.page.endswith(".md")


def test_what_measures_decides_whether_it_is_measured_not_where(tmp_path, monkeypatch):
    """Another PAC listener: the training stays what and where it is; what the old one measured of it is to be done again."""
    setting = Setting(row="scst-CLIP", steps=2, size="small")
    job, trained = (
        setting.job(tmp_path, test=True, further=("pac",)),
        setting.job(tmp_path, test=False, further=("pac",)),
    )
    job.folder.mkdir()
    (job.folder / trained.marker).write_text("{}")
    (job.folder / job.marker).write_text(json.dumps({"measured_by": job.models, "test": {}}))
    assert job.done()
    other = {"small": STAGES["world/pac"].schedules["small"] | {"steps": 7}}
    monkeypatch.setitem(STAGES, "world/pac", replace(STAGES["world/pac"], schedules=other))
    again = setting.job(tmp_path, test=True, further=("pac",))
    assert again.folder == job.folder
    assert not again.done()
    assert setting.job(tmp_path, test=False).done()
    measured = []
    monkeypatch.setattr(world_run, "_test", lambda *given: measured.append(given[3]) or {})
    monkeypatch.setattr(World, "load", lambda *given: None)
    monkeypatch.setattr(world_run, "points_of", lambda folder: ["selected"])
    for _ in range(2):
        world_run.run(setting, again.folder, test=True, further=("pac",))
    assert measured == ["selected"]
    assert again.done()
