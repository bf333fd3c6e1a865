"""Every alarm provoked by a real training on the small world, and silence where a training goes well."""

from functools import cache

import pytest

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.loader import TrainingData
from tellapart.data.world import load_scenes
from tellapart.data.world.measures import measure_against
from tellapart.evaluation.alarms import find_alarms
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.fluency import PerplexityMeasure
from tellapart.evaluation.report.runs import read_curves
from tellapart.experiments.world import World
from tellapart.objectives.scst import SCST
from tellapart.objectives.xe import XE
from tellapart.training.checkpoint import NonFiniteError
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Decoding

pytestmark = pytest.mark.slow

LIMIT = 40
"""Images of an evaluation."""


@cache
def world():
    """Shared, but for its captioner, which every training takes anew."""
    return World("small", 0)


def first(dataset, count):
    return CaptionDataset(dataset.examples[:count], name=dataset.name)


def evaluation(parts, captioner):
    watched, scenes = first(parts.dataset("val"), LIMIT), load_scenes("val", size="small")
    found = Evaluation(
        watched,
        parts.collate,
        listeners={"listener": parts.listener, "judge": parts.judge},
        decoding=Decoding(max_new_tokens=20),
        measures=(
            measure_against({e.id: scenes[e.id] for e in watched}),
            PerplexityMeasure(parts.language_model),
        ),
    )
    return lambda _: found(captioner).metrics


def trained(folder, objective, *, data=None, evaluate=None, **options):
    parts = world()
    config = TrainConfig(
        output_dir=folder,
        **{"per_device_train_batch_size": 8, "logging_steps": 1, "seed": 0, "max_steps": 3, **options},
    )
    return train(objective, data or parts.training_data(), config, evaluate=evaluate)


def verdicts(folder):
    return {alarm.rule for alarm in find_alarms(read_curves(folder / "metrics.jsonl"))}


def logged(run):
    return {key for line in run.history for key, value in line.items() if key.startswith("doctor/") and value}


def captioner():
    return World("small", 0).captioner


def sampled(reward, *, max_new_tokens=20, **options):
    speaker = captioner()
    return speaker, SCST(speaker, reward, num_generations=4, max_new_tokens=max_new_tokens, **options)


@pytest.fixture(scope="module")
def hacked(tmp_path_factory):
    """CLIP-S alone at a rate too high for this captioner: the listener is pleased by piles of words."""
    folder = tmp_path_factory.mktemp("hacked")
    speaker, objective = sampled(world().reward("clip_s"))
    evaluate = evaluation(world(), speaker)
    options = {"learning_rate": 5e-4, "max_steps": 40, "eval_steps": 2, "per_device_train_batch_size": 16}
    run = trained(
        folder, objective, evaluate=evaluate, on_hack="rollback", metric_for_best_model="listener_R@1", **options
    )
    return folder, run, evaluate(None)


def test_a_hacked_reward_is_seen_by_what_it_does_not_measure(hacked):
    folder, run, _ = hacked
    assert {"hacking", "grammar", "fluency", "repetition", "unfinished", "bad endings"} <= verdicts(folder)
    rewards = [line["reward"] for line in run.history if "reward" in line]
    assert rewards[-1] > rewards[0]


def test_the_run_is_ended_with_the_best_captioner(hacked):
    """It would have collapsed; what it leaves measures like the best evaluation, which was of healthy captions."""
    _, run, now = hacked
    assert run.step < 40
    assert run.ended
    best = next(line for line in run.evaluations if line["step"] == run.best.step)
    assert now == {key.removeprefix("eval_"): value for key, value in best.items() if key.startswith("eval_")}
    worst = run.evaluations[-1]
    assert now["grammatical"] > worst["eval_grammatical"] + 10


def test_one_caption_for_all_images(tmp_path):
    """Human captions that are all the same, as where captions were lost in a data set."""
    parts, speaker = world(), captioner()
    same = [Example(e.id, e.image, ("a red circle",)) for e in parts.dataset("train").examples[:32]]
    data = TrainingData(CaptionDataset(same, name="same"), parts.collate)
    objective = XE(speaker)
    options = {"learning_rate": 3e-3, "max_steps": 10, "eval_steps": 10, "per_device_train_batch_size": 16}
    trained(tmp_path, objective, data=data, evaluate=evaluation(parts, speaker), **options)
    assert {"one caption", "few distinct", "image ignored"} <= verdicts(tmp_path)


def test_references_of_another_language_reward_nothing(tmp_path):
    parts = world()
    french = [Example(e.id, e.image, ("un cercle rouge", "rond")) for e in parts.dataset("train").examples[:32]]
    data = TrainingData(CaptionDataset(french, name="french"), parts.collate)
    _, objective = sampled(parts.reward("cider_d"))
    run = trained(tmp_path, objective, data=data, learning_rate=1e-5)
    assert verdicts(tmp_path) >= {"zero reward", "no spread"}
    assert logged(run) == {"doctor/zero_reward", "doctor/no_spread"}


def test_equal_captions_have_no_advantages(tmp_path):
    """At a temperature near 0 all draws are the greedy caption."""
    _, objective = sampled(world().reward("clip_s"), temperature=1e-4)
    run = trained(tmp_path, objective, learning_rate=1e-5)
    assert logged(run) == {"doctor/no_spread"}


def test_captions_that_are_cut_while_drawing(tmp_path):
    _, objective = sampled(world().reward("clip_s"), max_new_tokens=3)
    run = trained(tmp_path, objective, learning_rate=1e-5)
    assert logged(run) == {"doctor/drawn_unfinished"}


def test_a_rate_that_overflows(tmp_path):
    _, objective = sampled(world().reward("clip_s"))
    with pytest.raises(NonFiniteError):
        trained(tmp_path, objective, learning_rate=1e30)
    assert "non finite" in verdicts(tmp_path)
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_training_that_goes_well_is_silent(tmp_path):
    speaker, objective = sampled(world().reward("cider_d"))
    options = {"learning_rate": 3e-5, "max_steps": 4, "eval_steps": 2}
    run = trained(tmp_path, objective, evaluate=evaluation(world(), speaker), on_hack="stop", **options)
    assert (run.step, run.ended) == (4, "")
    assert verdicts(tmp_path) == set()
    assert [line["doctor/verdicts"] for line in run.evaluations] == [0, 0, 0]
