"""Rows of the studies trained for two steps on the small world and measured, in the code that their processes run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from sweep.study_fakes import module, study_of
from tellapart.sweep.tasks import ASKED_FILE, carry_out
from tellapart.world import load_world
from tellapart.world.lstm import world_features
from tellapart.world.stages import resolve

pytestmark = pytest.mark.slow

COMMON = {
    "data.size": "small",
    "training.max_steps": 2,
    "training.eval_steps": 2,
    "training.per_device_train_batch_size": 16,
}


def measured(study, row):
    """The task of a row's first point, carried out."""
    setting = (study.grid(row) or [study.file.rows[row].setting])[0]
    task = study.task(row, setting, 0, study.file.measures[:1])
    task.write()
    carry_out(task.folder, task.folder / ASKED_FILE)
    assert task.done()
    return task


@pytest.mark.parametrize("row", ["psst", "listener_only"])
def test_a_row_with_a_listener_of_its_own(tmp_path, row):
    before = load_file(resolve("world/listener", size="small") / "model.safetensors")
    task = measured(study_of("psst", tmp_path, common=COMMON), row)
    tested = list(task.measured().values())[-1].metrics
    assert {"own_listener_R@1", "own_listener_human_R@10", "listener_R@1", "judge_R@1", "perplexity"} <= set(tested)
    after = load_file(task.folder / "checkpoint-2" / "own_listener" / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    kept = load_file(resolve("world/listener", size="small") / "model.safetensors")
    assert all(torch.equal(before[name], kept[name]) for name in before)
    assert (task.folder / "checkpoint-2" / "captioner").is_dir() == (row == "psst")


@pytest.mark.parametrize(
    ("name", "pool", "width"), [pytest.param("lstm", "mean", 1, marks=pytest.mark.nightly), ("updown", "grid", 4)]
)
def test_a_row_from_an_lstm_has_sets(tmp_path, name, pool, width):
    study = study_of("sle", tmp_path, common=COMMON)
    file = module("sle").prepare(study.file, "small", True)
    features = world_features(resolve("world/backbone", size="small"), "small", pool)
    first = features[next(iter(load_world("test", size="small"))).id]
    assert first.size == width * features.width
    assert file.rows[f"{name} sle"].overrides["data.features"] == str(features.path)
    study.file = replace(file, measure={**file.measure, "meteor": False})  # whose data take a minute to compile
    task = measured(study, f"{name} sle")
    assert set(task.measured()) == {"selected", "last"}
    assert set(study.file.sets) <= set(task.measured()["last"].metrics)
    start = measured(study, f"{name} xe").measured()["start"].metrics
    # five draws of a captioner that has hardly learnt are more different than its five best beams
    assert start["rs5_Div-2"] > start["bs5_Div-2"]


def test_stages_and_a_row_from_blip2(tmp_path):
    before = load_file(resolve("world/blip2", size="small") / "model.safetensors")
    tower = load_file(resolve("world/blip2-backbone", size="small") / "model.safetensors")
    matcher = load_file(resolve("world/itm", size="small") / "model.safetensors")
    for name, value in tower.items():
        assert torch.equal(before[f"vision_model.{name}"], value)
        assert torch.equal(matcher[f"vision_model.{name}"], value)
    vlrm = module("vlrm")
    study = study_of("vlrm", tmp_path, common=COMMON, derive=vlrm.derive)
    task = measured(study, "vlrm")
    wanted = {"color_coverage", "judge_MRR", "exact_recall@1", "listed_phrases"}
    assert wanted <= set(study._metrics(task.measured()["last"]))
    after = load_file(task.folder / "checkpoint-2" / "captioner" / "model.safetensors")
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"query_tokens", "qformer", "language_projection"}


def test_pac_s_is_measured_and_steps_are_timed(tmp_path):
    study = study_of("dico", tmp_path, common=COMMON)
    task = measured(study, "dico")
    assert {"PAC-S", "RefPAC-S"} <= set(task.measured()["selected"].metrics)
    timing = replace(task, times=True)
    timing.write()
    carry_out(timing.folder, timing.folder / ASKED_FILE)
    assert timing.done()
    assert 0 < timing.seconds < 100


def test_rows_without_training_search_the_start_captioner(tmp_path):
    study = study_of("table", tmp_path, common=COMMON)
    study.file = replace(study.file, measure={**study.file.measure, "meteor": False})
    found = {}
    for row in ("xe, 20 beams", "xe, apart"):
        (how,) = study.file.measures_of(row)
        task = study.task(row, study.file.rows[row].setting, 0, [how | {"limit": 24}])
        assert not task.trains
        task.write()
        carry_out(task.folder, task.folder / ASKED_FILE)
        (found[row],) = task.measured().values()
    columns = set(study.file.tables[""]) - {"METEOR", "rs5_mBLEU-4"}
    assert all(columns <= set(one.metrics) for one in found.values())
    captions = {row: one.result().captions for row, one in found.items()}
    images = set(load_world("test", size="small").ids[:24])
    assert captions["xe, 20 beams"].keys() == captions["xe, apart"].keys() == images
    assert captions["xe, 20 beams"] != captions["xe, apart"]
