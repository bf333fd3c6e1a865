"""Every alarm provoked by a real training on the small world, and silence where a training goes well.

Of every method a whole run that went well is in tests/verdicts/recorded.
"""

from functools import cache

import pytest
import torch

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.loader import TrainingData
from tellapart.evaluation.alarms import find_alarms
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.fluency import PerplexityMeasure
from tellapart.evaluation.grammar import GrammarMeasure
from tellapart.evaluation.report.runs import read_curves
from tellapart.metrics.chair import ObjectNames, chair
from tellapart.objectives.scst import SCST
from tellapart.objectives.xe import XE
from tellapart.recipe import Recipe
from tellapart.recipe.models import load_captioner, load_language_model
from tellapart.rewards.grammar import Grammar
from tellapart.rewards.reference import CiderD, DocumentFrequencies
from tellapart.rewards.similarity import Similarity
from tellapart.training.checkpoint import NonFiniteError
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Decoding
from tellapart.verdicts.rules import FLOOR, HACKING, RULES
from tellapart.world import load_scenes, spec
from tellapart.world.measures import measure_against, world_measures
from tellapart.world.stages import resolve

pytestmark = pytest.mark.slow

LIMIT = 40
"""Images of an evaluation."""

PILES = {HACKING, "grammar", "grammar head", "fluency", "repetition", "unfinished", "bad endings", "likeness"}
SAME = {"one caption", "few distinct", "image ignored", "invention", "objects"}
TERSE = {"shorter"}
LONG = {"longer"}
ONE_LISTENER = {"judge"}
FRENCH = {"zero reward", "no spread"}
CUT = {"drawn unfinished"}
OVERFLOW = {"non finite"}
"""What each of the trainings below provokes."""


def test_every_verdict_is_provoked():
    provoked = PILES | SAME | TERSE | LONG | ONE_LISTENER | FRENCH | CUT | OVERFLOW | {FLOOR}
    assert provoked == {rule.name for rule in RULES} | {HACKING, FLOOR}


@cache
def world():
    """What a recipe of the small world builds; every training takes the captioner anew."""
    return Recipe.load("world_ved_scst_clip", {"data.size": "small"}).build()


def first(dataset, count):
    return CaptionDataset(dataset.examples[:count], name=dataset.name)


def absent_shapes(scenes):
    """CHAIR of the world: its shapes are the objects."""
    names = ObjectNames("\n".join(f"{shape}: {shape}" for shape in spec.SHAPES))
    shapes = {name: {thing.shape for thing in scene.objects} for name, scene in scenes.items()}
    return lambda captions: ({"CHAIRs": 100 * chair(captions, shapes, names=names)[0]["CHAIRs"]}, {})


def evaluation(parts, captioner, *measures, limit=LIMIT):
    watched, scenes = first(parts.evaluate.dataset, limit), load_scenes("val", size="small")
    scenes = {e.id: scenes[e.id] for e in watched}
    found = Evaluation(
        watched,
        parts.evaluate.collate,
        listeners=parts.evaluate.listeners,
        decoding=Decoding(max_new_tokens=20),
        measures=(
            measure_against(scenes, world_measures),
            absent_shapes(scenes),
            PerplexityMeasure(load_language_model("world/language_model", size="small")),
            *measures,
        ),
    )
    return lambda _: found(captioner).metrics


def trained(folder, objective, *, data=None, evaluate=None, **options):
    parts = world()
    config = TrainConfig(
        output_dir=folder,
        **{"per_device_train_batch_size": 8, "logging_steps": 1, "seed": 0, "max_steps": 3, **options},
    )
    return train(objective, data or parts.data, config, evaluate=evaluate)


def verdicts(folder):
    return {alarm.rule for alarm in find_alarms(read_curves(folder / "metrics.jsonl"))}


def logged(run):
    return {key for line in run.history for key, value in line.items() if key.startswith("doctor/") and value}


def captioner():
    return load_captioner("world/xe", size="small")


def cider(parts):
    return CiderD(DocumentFrequencies.from_references(parts.dataset.references))


def sampled(reward, *, max_new_tokens=20, **options):
    speaker = captioner()
    return speaker, SCST(speaker, reward, num_generations=4, max_new_tokens=max_new_tokens, **options)


@pytest.fixture(scope="module")
def hacked(tmp_path_factory):
    """CLIP-S alone at a rate too high for this captioner: the listener is pleased by piles of words."""
    folder = tmp_path_factory.mktemp("hacked")
    speaker, objective = sampled(Similarity(world().objective.reward.rewards["clip_s"].listener))
    evaluate = evaluation(
        world(), speaker, GrammarMeasure(Grammar.from_pretrained(resolve("world/grammar", size="small")))
    )
    options = {"learning_rate": 1e-3, "max_steps": 40, "eval_steps": 2, "per_device_train_batch_size": 16}
    options |= {"on_hack": "rollback", "metric_for_best_model": "listener_R@1", "best_floor": {"Bleu_1": 0.8}}
    run = trained(folder, objective, evaluate=evaluate, **options)
    return folder, run, evaluate(None)


def test_a_hacked_reward_is_seen_by_what_it_does_not_measure(hacked):
    folder, run, _ = hacked
    assert verdicts(folder) >= PILES
    assert "doctor/floor" in logged(run)
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
    same = [Example(e.id, e.image, ("a red circle",)) for e in parts.dataset.examples[:32]]
    data = TrainingData(CaptionDataset(same, name="same"), parts.evaluate.collate)
    objective = XE(speaker)
    options = {"learning_rate": 3e-3, "max_steps": 10, "eval_steps": 10, "per_device_train_batch_size": 16}
    trained(tmp_path, objective, data=data, evaluate=evaluation(parts, speaker), **options)
    assert verdicts(tmp_path) >= SAME


def test_a_reward_of_short_captions(tmp_path):
    """A point less for every word."""
    speaker, objective = sampled(lambda rollout: -rollout.lengths.float())
    options = {"learning_rate": 1e-3, "max_steps": 2, "eval_steps": 2, "per_device_train_batch_size": 16}
    trained(tmp_path, objective, evaluate=evaluation(world(), speaker), **options)
    assert verdicts(tmp_path) >= TERSE


def test_a_reward_of_long_captions(tmp_path):
    """A point for every word."""
    speaker, objective = sampled(lambda rollout: rollout.lengths.float())
    options = {"learning_rate": 1e-3, "max_steps": 6, "eval_steps": 2, "per_device_train_batch_size": 16}
    trained(tmp_path, objective, evaluate=evaluation(world(), speaker), **options)
    assert verdicts(tmp_path) >= LONG


def told_by_one_alone(parts, images):
    """Of each image a short caption of another one by which the listener finds it most surely and the judge does not."""
    pool = sorted({text for example in parts.dataset for text in example.references if len(text.split()) <= 12})
    leads = []
    listener = parts.evaluate.listeners["listener"]
    cosines = (listener.encode_texts(pool) @ listener.encode_images(parts.evaluate.collate(images)).T).detach()
    for scores in (cosines, parts.evaluate.listeners["judge"].logprobs(pool, [example.id for example in images])):
        top = scores.topk(2, dim=1).values
        leads.append(scores - torch.where(scores == top[:, :1], top[:, 1:], top[:, :1]))
    chosen = leads[0].masked_fill(leads[1] >= 0, -torch.inf).argmax(dim=0)
    return [pool[number] for number in chosen.tolist()]


def test_captions_that_please_one_listener_alone(tmp_path):
    """Learned by heart, so that the listener finds more images than at first and the judge hardly any."""
    parts, speaker = world(), captioner()
    images = parts.evaluate.dataset.examples[:LIMIT]
    captions = told_by_one_alone(parts, images)
    learned = [Example(e.id, e.image, (text,)) for e, text in zip(images, captions, strict=True)]
    data = TrainingData(CaptionDataset(learned, name="learned"), parts.evaluate.collate)
    options = {"learning_rate": 1e-3, "max_steps": 60, "eval_steps": 60, "per_device_train_batch_size": 20}
    run = trained(tmp_path, XE(speaker), data=data, evaluate=evaluation(parts, speaker), **options)
    assert verdicts(tmp_path) >= ONE_LISTENER
    start, end = run.evaluations
    assert end["eval_listener_R@1"] > start["eval_listener_R@1"] + 5


def test_references_of_another_language_reward_nothing(tmp_path):
    parts = world()
    french = [Example(e.id, e.image, ("un cercle rouge", "rond")) for e in parts.dataset.examples[:32]]
    data = TrainingData(CaptionDataset(french, name="french"), parts.evaluate.collate)
    _, objective = sampled(cider(parts))
    run = trained(tmp_path, objective, data=data, learning_rate=1e-5)
    assert verdicts(tmp_path) == FRENCH
    assert logged(run) == {"doctor/zero_reward", "doctor/no_spread"}


def test_equal_captions_have_no_advantages(tmp_path):
    """At a temperature near 0 all draws are the greedy caption."""
    _, objective = sampled(Similarity(world().objective.reward.rewards["clip_s"].listener), temperature=1e-4)
    run = trained(tmp_path, objective, learning_rate=1e-5)
    assert logged(run) == {"doctor/no_spread"}


def test_captions_that_are_cut_while_drawing(tmp_path):
    _, objective = sampled(Similarity(world().objective.reward.rewards["clip_s"].listener), max_new_tokens=3)
    run = trained(tmp_path, objective, learning_rate=1e-5)
    assert logged(run) == {"doctor/drawn_unfinished"}
    assert verdicts(tmp_path) == CUT


def test_a_rate_that_overflows(tmp_path):
    _, objective = sampled(Similarity(world().objective.reward.rewards["clip_s"].listener))
    with pytest.raises(NonFiniteError):
        trained(tmp_path, objective, learning_rate=1e30)
    assert verdicts(tmp_path) >= OVERFLOW
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_training_that_goes_well_is_silent(tmp_path):
    speaker, objective = sampled(cider(world()))
    options = {"learning_rate": 3e-5, "max_steps": 4, "eval_steps": 2}
    # Of 40 images one is more than the 2 points that a judge may lose, and one is lost by chance.
    evaluate = evaluation(world(), speaker, limit=None)
    run = trained(tmp_path, objective, evaluate=evaluate, on_hack="stop", **options)
    assert (run.step, run.ended) == (4, "")
    assert verdicts(tmp_path) == set()
    assert [line["doctor/verdicts"] for line in run.evaluations] == [0, 0, 0]
