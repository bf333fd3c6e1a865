"""Everything a training needs, built from a resolved recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tellapart.captioners.base import Captioner
from tellapart.captioners.contract import check_captioner
from tellapart.data.dataset import CaptionDataset
from tellapart.data.features.base import FeatureSet
from tellapart.data.loader import TrainingData
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.fluency import PerplexityMeasure
from tellapart.evaluation.grammar import GrammarMeasure
from tellapart.evaluation.measures import Measure
from tellapart.evaluation.meteor import MeteorMeasure
from tellapart.evaluation.results import EvaluationResult
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.vse import Vse
from tellapart.objectives import METHODS
from tellapart.recipe import own_listener as owned
from tellapart.recipe.feature_inputs import collate_of, features_at, start_captioner
from tellapart.recipe.images import (
    check_selection,
    reads_as_they_come,
    training_data,
    training_images,
    watched_images,
    with_listener,
)
from tellapart.recipe.load import Recipe
from tellapart.recipe.matchers import check_matcher, recipe_matcher, with_matcher
from tellapart.recipe.models import (
    decoding,
    device,
    load_grammar,
    load_language_model,
    load_listener,
    truth_of,
)
from tellapart.recipe.parts import build_objective, check_parts
from tellapart.recipe.rewards import build_reward, check_reward, listening
from tellapart.recipe.scorers import load_scorers
from tellapart.recipe.soft_listeners import load_retriever
from tellapart.rewards.language_model import LanguageModel
from tellapart.training.start import two_pictures


@dataclass(frozen=True)
class Built:
    """The parts of a training.

    Args:
        captioner: what is trained.
        objective: how.
        dataset: the training images.
        data: the same, as the loop reads them.
        watch: the evaluation, if there is one.
        skipped: id and reason of the images that are left out because they cannot be read, the evaluation's included.
    """

    captioner: Captioner
    objective: Any  # both an Objective and an nn.Module, which no type can say
    dataset: CaptionDataset
    data: TrainingData
    watch: Watch | None
    skipped: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Watch:
    """Evaluates the captioner of an objective, and keeps the newest result."""

    evaluation: Evaluation
    name: str
    last: EvaluationResult | None = field(default=None, init=False)

    def __call__(self, objective: Any) -> dict[str, float]:
        """The metrics, by name."""
        return self.measure(objective.captioner).metrics

    def measure(self, captioner: Captioner) -> EvaluationResult:
        """All of the result."""
        self.last = self.evaluation(captioner, name=self.name)
        return self.last


def build(recipe: Recipe) -> Built:
    """Data, captioner, listener, reward, objective and evaluation of a recipe; the captioner is checked on two images.

    Raises:
        UsageError: a part is missing, broken, or does not go with another.
    """
    check_together(recipe)
    section = recipe.data
    features = features_at(section.features)
    dataset, held, skipped = training_images(recipe, features)
    if METHODS[recipe.method].needs_references:
        dataset.require_references(f"method {recipe.method}")
    seed = recipe.training.seed
    captioner = start_captioner(recipe.captioner, dataset, features, size=section.size, seed=seed).to(device())
    collate = collate_of(captioner, features)
    # train checks again; here a wrong model is told before the listener has looked at every image
    sample = training_data(recipe, dataset, collate).sample
    check_captioner(captioner, collate(two_pictures(sample, collate)).to(device()))
    ahead = not reads_as_they_come(recipe)
    listener, reader = _listener(recipe, dataset), _language_model(recipe)
    matcher = recipe_matcher(recipe, dataset, ahead=ahead)
    own = owned.build_own_listener(recipe, captioner, dataset, features)
    collate = with_listener(owned.with_pictures(collate, own), recipe, listener)
    collate = with_matcher(collate, matcher, ahead=ahead)
    reward = partial(build_reward, recipe, dataset, listener, reader, matcher)
    objective = build_objective(recipe, captioner, dataset, collate, listener, reward, own)
    owned.check_unrolling(recipe, captioner, own, objective, (sample, collate))
    watch, skipped_watched = _watch(recipe, (dataset, held), captioner, listener, reader, own)
    skipped = list(dict.fromkeys(skipped + skipped_watched))
    return Built(captioner, objective, dataset, training_data(recipe, dataset, collate), watch, skipped)


def check_together(recipe: Recipe) -> None:
    """Raise where sections contradict each other; nothing is loaded for it.

    Raises:
        UsageError: naming the option to change.
    """
    check_reward(recipe)
    check_parts(recipe)
    check_matcher(recipe)


def _listener(recipe: Recipe, dataset: CaptionDataset) -> ClipListener | None:
    """The listener, which knows the training images if the reward or the method asks it about them."""
    if recipe.listener.path is None:
        return None
    section = recipe.listener
    listener = load_listener(
        str(section.path), name="listener", prefix=section.prefix, size=recipe.data.size, base=section.base
    )
    asked = listening(recipe.reward) or "listener" in METHODS[recipe.method].needs
    if asked and not reads_as_they_come(recipe):
        listener.cache_images(dataset)
    return listener


def _language_model(recipe: Recipe) -> LanguageModel | None:
    """The language model of the reward, if it asks one."""
    section = recipe.language_model
    if section.path is None or not recipe.reward.language_model:
        return None
    return load_language_model(section.path, dtype=section.dtype, size=recipe.data.size)


def _perplexity(recipe: Recipe, reader: LanguageModel | None) -> tuple[Measure, ...]:
    """Perplexity as a measure of the evaluation, if it names a language model; the reward's own is not loaded twice."""
    path = recipe.evaluation.language_model
    if path is None:
        return ()
    same = reader is not None and path == recipe.language_model.path and recipe.language_model.dtype == "float32"
    size = recipe.data.size
    return (PerplexityMeasure(reader if reader is not None and same else load_language_model(path, size=size)),)


def _watch(
    recipe: Recipe,
    images: tuple[CaptionDataset, CaptionDataset | None],
    captioner: Captioner,
    listener: ClipListener | None,
    reader: LanguageModel | None,
    own_listener: owned.OwnListener | None,
) -> tuple[Watch | None, list[tuple[str, str]]]:
    """The evaluation, with its retrievers, and the images it leaves out; ``images`` are those trained on and held out."""
    section, data = recipe.evaluation, recipe.data
    dataset, held = images
    if section.split is None and held is None:
        return None, []
    split = str(section.split) if held is None else data.split
    features = features_at(section.features or data.features)
    watched, skipped = watched_images(recipe, dataset, features, split) if held is None else (held, [])
    check_selection(recipe, watched)
    workers = recipe.training.dataloader_num_workers
    scorers = load_scorers(watched, pac=section.pac, pac_base=section.pac_base, itm=section.itm, size=data.size)
    evaluation = Evaluation(
        watched,
        collate_of(captioner, features),
        listeners=_retrievers(recipe, watched, listener, features),
        decoding=decoding(
            section.num_beams,
            section.max_new_tokens,
            no_repeat_ngram_size=section.no_repeat_ngram_size,
            min_new_tokens=section.min_new_tokens,
        ),
        measures=_measures(recipe, watched, split, reader),
        scorers=[*scorers, *owned.own_scorers(own_listener, watched, num_workers=workers)],
        num_workers=workers,
        samples=section.samples,
    )
    return Watch(evaluation, recipe.training.output_dir.name), skipped


def _measures(recipe: Recipe, watched: CaptionDataset, split: str, reader: LanguageModel | None) -> tuple[Measure, ...]:
    """What the evaluation measures of captions beside what every evaluation does."""
    section, data = recipe.evaluation, recipe.data
    found = truth_of(section.path or data.path, split, size=data.size, dataset=watched)
    found += _perplexity(recipe, reader)
    if section.grammar is not None:
        found += (GrammarMeasure(load_grammar(section.grammar, size=data.size)),)
    if section.meteor:
        found += (MeteorMeasure(watched.references),)
    return found


def _retrievers(
    recipe: Recipe, watched: CaptionDataset, listener: ClipListener | None, features: FeatureSet | None
) -> dict[str, ClipListener | Vse]:
    """The reward's listener and the judge, where there are such, which know the evaluation's images."""
    found: dict[str, ClipListener | Vse] = {} if listener is None else {"listener": listener}
    judge = recipe.evaluation.judge
    if judge is not None:
        found["judge"] = load_retriever(judge, name="judge", size=recipe.data.size, features=features)
    for retriever in found.values():
        retriever.cache_images(watched)
    return found
