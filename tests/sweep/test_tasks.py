"""What a sweep plans: folders by what decides numbers, stages built once, and a listener that fails its probe refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tellapart.errors import UsageError
from tellapart.files import write_json
from tellapart.recipe.recipe import Recipe
from tellapart.sweep.tasks import Setting, Sweep, distinct
from tellapart.sweep.trainings import build_stages, load, option, seconds_per_step

DICO = Setting("world_ved_dico", {"data.size": "small"})


def test_one_rate_of_several_is_changed():
    _, recipe = load("world_ved_psst", {"training.learning_rate.captioner": 3e-4})
    assert option(recipe, "training.learning_rate") == {"captioner": 3e-4, "own_listener": 1e-4}
    assert recipe["objective"] == load("world_ved_psst", {})[1]["objective"], "nothing else is"


def test_a_folder_is_named_by_what_decides_the_numbers(tmp_path):
    sweep = Sweep(tmp_path)
    before = sweep.training(DICO, 0, "a")
    assert before.folder.parent == tmp_path / "points"
    assert before.folder.name.startswith("dico-")
    assert (
        sweep.training(DICO.having({"objective.beta": 0.2, "training.logging_steps": 3}), 0, "b").folder
        == before.folder
    )
    for changed in ({"objective.beta": 0.3}, {"training.max_steps": 61}, {"listener.path": "world/pac"}):
        assert sweep.training(DICO.having(changed), 0, "c").folder != before.folder
    assert sweep.training(DICO, 1, "d").folder != before.folder


def test_how_it_is_measured_is_another_marker_of_the_same_training(tmp_path):
    sweep = Sweep(tmp_path)
    greedy, beams = {"split": "test", "num_beams": 1}, {"split": "test", "num_beams": 5}
    one, both = sweep.training(DICO, 0, "a", [greedy]), sweep.training(DICO, 0, "a", [greedy, beams])
    assert one.folder == both.folder
    assert set(one.measures) < set(both.measures)
    (joined,) = distinct([sweep.training(DICO, 0, "a"), one, both])
    assert joined.measures == both.measures
    assert len(joined.job.markers) == 2


@pytest.mark.parametrize("logged", [range(1, 61), range(10, 61, 10), range(20, 61, 40)])
def test_hours_count_steps_that_were_not_logged(tmp_path, logged):
    task = Sweep(tmp_path).training(DICO, 0, "a")
    lines = [
        {"step": 0, "eval_CIDEr": 1.0},
        *({"step": n, "seconds/collect": 2.0, "seconds/update": 1.0} for n in logged),
    ]
    write_json(task.folder / "trained.json", {"selected": 20, "last": 60})
    (task.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert task.hours == pytest.approx(60 * 3 / 3600)


def test_a_start_captioner_is_measured_once_for_all_that_begin_with_it(tmp_path):
    sweep = Sweep(tmp_path)
    starts = [sweep.start(Setting(name), 0) for name in ("world_ved_dico", "world_ved_scst_clip")]
    assert starts[0].folder == starts[1].folder
    assert starts[0].name == "start model world/xe"
    assert sweep.start(Setting("world_ved_dico"), 1).folder != starts[0].folder
    assert sweep.start(Setting("world_ved_xe"), 0) is None  # random weights are not a start


def test_a_listener_that_fails_its_probe_is_refused(tmp_path, monkeypatch):
    """Judges are no rewards: theirs demands nothing."""
    monkeypatch.setattr("tellapart.recipe.models.build_stage", lambda name, size: tmp_path / name.replace("/", "-"))
    for name, right in (("listener", 40.0), ("judge", 10.0), ("pac", 99.0), ("xe", 0.0)):
        folder = tmp_path / f"world-{name}"
        folder.mkdir()
        accuracy = dict.fromkeys(("colour", "size", "background"), 99.0) | {"shape": right}
        (folder / "probe.json").write_text(json.dumps({"accuracy": accuracy, "size": "full"}))
    recipe = {"data": {"size": "full"}, "captioner": {"model_name_or_path": "world/xe"}}
    build_stages([(recipe | {"listener": {"path": "world/pac"}}, {"test": {"judge": "world/judge"}})])
    with pytest.raises(UsageError, match=r"tells shape right in 40\.0 % of pictures, under 90 %"):
        build_stages([(recipe | {"listener": {"path": "world/listener"}}, {})])


def test_nothing_to_do_removes_the_lock_of_a_killed_process(tmp_path):
    """A command that was killed after its last training left its lock for good."""
    held = "import os, sys; from pathlib import Path; from tellapart.locks import NAME, Lock\n"
    held += "with Lock(Path(sys.argv[1]) / NAME, 'running trainings in'): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", held, tmp_path], check=False).returncode == 9
    assert list(tmp_path.iterdir())
    assert Sweep(tmp_path).run([], "nothing") == []
    assert not list(tmp_path.iterdir())


def test_steps_of_a_training_that_rolls_back_are_timed(monkeypatch):
    """Timing selects no checkpoint, which rolling back asks for."""

    def built(recipe):
        raise RuntimeError(f"built, {recipe.training.on_hack}")

    monkeypatch.setattr(Recipe, "build", built)
    _, recipe = load("world_ved_dico", {"training.on_hack": "rollback"})
    with pytest.raises(RuntimeError, match="built, warn"):
        seconds_per_step(recipe)
