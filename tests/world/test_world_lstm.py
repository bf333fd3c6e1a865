"""The world's recurrent start captioner, its features, and the study that begins with it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tellapart.experiments import study_page
from tellapart.experiments.sle_rows import SLE_ROWS
from tellapart.experiments.study import Study
from tellapart.experiments.study_sle import PLAN, SETS
from tellapart.experiments.world import World
from tellapart.experiments.world_run import Setting, _sets, marker_of, run
from tellapart.world import load_world
from tellapart.world.backbone import image_processor
from tellapart.world.lstm import SPLITS, world_features
from tellapart.world.stages import resolve, stage_folder


@pytest.fixture(scope="module")
def parts():
    return World("small", 0, "world/lstm")


@pytest.mark.slow
def test_features_are_the_mean_over_the_backbones_patches(parts):
    from transformers import CLIPVisionModel

    backbone = resolve("world/backbone", size="small")
    features = world_features(backbone, "small")
    examples = {e.id: e for split in SPLITS for e in load_world(split, size="small")}
    assert len(features) == len(examples)
    tower = CLIPVisionModel.from_pretrained(backbone).eval()
    name = next(iter(load_world("test", size="small"))).id
    pixels = image_processor()(images=[examples[name].image.open()], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        states = tower(pixel_values=pixels).last_hidden_state[0]
    np.testing.assert_allclose(features[name], states[1:].mean(dim=0).numpy(), atol=1e-5)  # without the class token


@pytest.mark.slow
def test_the_start_captioner_reads_features_and_is_measured(parts):
    assert parts.captioner.feature_size == world_features(resolve("world/backbone", size="small"), "small").width
    result = parts.evaluation("val")(parts.captioner)
    assert result.metrics["CIDEr"] > 0
    sets = _sets(parts)
    assert set(sets) == set(SETS)
    # Five draws of a captioner that has hardly learnt are more different than its five best beams.
    assert sets["rs5_Div-2"] > sets["bs5_Div-2"]


@pytest.mark.slow
def test_a_run_from_the_lstm_is_measured_on_test(parts, tmp_path):
    setting = Setting(row="lstm sle", learning_rate=1e-4, knob=0.75, steps=2, images=8, eval_steps=2, size="small")
    assert setting.key() != Setting(**{**vars(setting), "row": "sle"}).key()
    run(setting, tmp_path, test=True, further=("sets",))
    tested = json.loads((tmp_path / marker_of(("sets",))).read_text())["test"]
    assert set(tested["last"]) == {"greedy", "beam5", "sets"}
    assert tested["selected"]["sets"]["rs5_CIDEr"] >= 0
    assert (tmp_path / "checkpoint-2" / "captioner" / "model.safetensors").is_file()


def test_seeds_of_a_start_captioner_have_folders_of_their_own():
    folders = {stage_folder("world/lstm", "full", seed) for seed in (0, 1)}
    assert {folder.name.rpartition("-")[0] for folder in folders} == {"lstm-seed0", "lstm-seed1"}


def test_the_page_of_sle(tmp_path, monkeypatch):
    """Numbers made by hand: sle is above sll in all but one seed of CIDEr, and its samples are more different."""
    study = Study(PLAN, tmp_path, Setting(row="xe"), learning_rates=(1e-4,))
    value = {"xe": 1.0, "sll": 2.0, "sll_me": 2.1, "sle": 2.05}
    for row in SLE_ROWS:
        for setting in study.grid(row):
            val = {"listener_R@1": 30.0 + (setting.knob or 0), "CIDEr": 1.0, "grammatical": 90.0}
            _note(study, setting, "trained.json", {"val": val, "val_last": val, "selected_step": 10})
    for _, settings in study.measured():
        for setting in settings:
            name = setting.row.removeprefix("lstm ")
            one = dict.fromkeys(("METEOR", "Bleu_4", "listener_R@1", "judge_R@1"), 0.2)
            one |= dict.fromkeys(("exact_recall@1", "grammatical", "truthful", "Self-BLEU", "distinct_captions"), 50.0)
            one |= {"CIDEr": value[name] + 0.06 * setting.seed, "mean_length": 7.0}
            sets = dict.fromkeys(SETS, 0.5) | {"rs5_Div-2": 3 - value[name], "rs5_mBLEU-4": value[name] / 3}
            sets |= {"rs5_Div-2": 0.9, "rs5_mBLEU-4": 0.1} if name == "xe" else {}
            sets |= {"rs5_Div-2": 0.5, "rs5_mBLEU-4": 0.4} if name == "sle" else {}
            sets |= {"rs5_Div-2": 0.3, "rs5_mBLEU-4": 0.7} if name in ("sll", "sll_me") else {}
            tested = {"greedy": one, "beam5": one, "sets": sets}
            points = {"selected": tested} if name == "xe" else {"selected": tested, "last": tested}
            _note(study, setting, marker_of(PLAN.further_measures), {"test": points})
    monkeypatch.setattr(study_page, "_probe", lambda study: "probe")
    study_page.write_page(study, tmp_path / PLAN.page, references={})
    text = (tmp_path / PLAN.page).read_text()
    assert text.count("**Holds**") == 20
    assert "Does not hold" not in text
    table = text.partition("## Test, five captions an image")[2].partition("## What was expected")[0]
    assert "| lstm sle | selected | 50.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 | 40.0 ± 0.0 |" in table
    assert "| lstm xe | - |" in table


def _note(study, setting, name, content):
    folder = study.root / setting.key()
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))
