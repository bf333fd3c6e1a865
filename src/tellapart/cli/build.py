"""Everything a training needs, built from a resolved recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tellapart.captioners.base import Captioner
from tellapart.captioners.contract import check_captioner
from tellapart.cli import own_listener as owned
from tellapart.cli.console import note
from tellapart.cli.feature_inputs import collate_of, features_at, load_pictured, needs_pictures, start_captioner, usable
from tellapart.cli.models import (
    decoding,
    device,
    load_grammar,
    load_language_model,
    load_listener,
    truth_of,
)
from tellapart.cli.parts import build_grammar, build_objective, check_parts
from tellapart.cli.recipe import Recipe
from tellapart.cli.scorers import load_scorers
from tellapart.cli.soft_listeners import load_retriever
from tellapart.data.dataset import CaptionDataset
from tellapart.data.features.base import FeatureSet
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.fluency import PerplexityMeasure
from tellapart.evaluation.grammar import GrammarMeasure
from tellapart.evaluation.measures import Measure
from tellapart.evaluation.meteor import MeteorMeasure
from tellapart.evaluation.results import EvaluationResult
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.vse import Vse
from tellapart.objectives import METHODS
from tellapart.rewards.language_model import LanguageModel, MeanLogProbability
from tellapart.rewards.meteor import Meteor
from tellapart.rewards.mix import Mix
from tellapart.rewards.reference import CiderD, DocumentFrequencies
from tellapart.rewards.similarity import Similarity
from tellapart.training.start import two_pictures
from tellapart.types import Reward


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
    dataset = load_pictured(
        section.path,
        section.split,
        images=section.images,
        format=section.format,
        size=section.size,
        limit=section.limit,
        missing_files=section.on_error == "skip",
        features=features,
    )
    dataset, skipped = usable(dataset, section.on_error, features, pictures=needs_pictures(recipe))
    if METHODS[recipe.method].needs_references:
        dataset.require_references(f"method {recipe.method}")
    seed = recipe.training.seed
    captioner = start_captioner(recipe.captioner, dataset, features, size=section.size, seed=seed).to(device())
    collate = collate_of(captioner, features)
    # train checks again; here a wrong model is told before the listener has looked at every image
    check_captioner(captioner, collate(two_pictures(dataset, collate)).to(device()))
    listener, reader = _listener(recipe, dataset), _language_model(recipe)
    own = owned.build_own_listener(recipe, captioner, dataset, features)
    collate = owned.with_pictures(collate, own)
    objective = build_objective(
        recipe, captioner, dataset, collate, listener, lambda: build_reward(recipe, dataset, listener, reader), own
    )
    owned.check_unrolling(recipe, captioner, own, objective, (dataset, collate))
    watch, skipped_watched = _watch(recipe, dataset, captioner, listener, reader, own)
    skipped = list(dict.fromkeys(skipped + skipped_watched))
    return Built(captioner, objective, dataset, TrainingData(dataset, collate), watch, skipped)


def check_together(recipe: Recipe) -> None:
    """Raise where sections contradict each other; nothing is loaded for it.

    Raises:
        UsageError: naming the option to change.
    """
    method, reward = METHODS[recipe.method], recipe.reward
    weights = vars(reward)
    if method.needs_reward and not any(weights.values()):
        raise UsageError(f"method {recipe.method} needs a reward: give {' or '.join(weights)} of reward a weight.")
    if not method.needs_reward and any(weights.values()):
        raise UsageError(f"method {recipe.method} takes no reward: leave reward out, or choose another method.")
    if reward.clip_s and recipe.listener.path is None:
        raise UsageError("reward.clip_s needs a listener: set listener.path to a CLIP model, such as world/listener.")
    check_parts(recipe)
    if reward.language_model and recipe.language_model.path is None:
        raise UsageError("reward.language_model needs a model: set language_model.path to a causal one, such as gpt2.")
    if reward.grammar and recipe.parts["grammar"] is None:
        raise UsageError("reward.grammar needs a grammar head: set grammar.path, such as world/grammar.")


def build_reward(
    recipe: Recipe,
    dataset: CaptionDataset,
    listener: ClipListener | None,
    language_model: LanguageModel | None,
) -> Reward:
    """The weighted sum of the rewards that have a weight.

    Raises:
        UsageError: a reward needs references that the data lack.
    """

    def cider_d() -> Reward:
        dataset.require_references("reward cider_d")
        return CiderD(DocumentFrequencies.from_references(dataset.references))

    def meteor() -> Reward:
        dataset.require_references("reward meteor")
        return Meteor()

    def clip_s() -> Reward:
        assert listener is not None, "check_together asks for one"
        return Similarity(listener)

    def fluency() -> Reward:
        assert language_model is not None, "check_together asks for one"
        return MeanLogProbability(language_model)

    makers: dict[str, Callable[[], Reward]] = {
        "clip_s": clip_s,
        "cider_d": cider_d,
        "language_model": fluency,
        "grammar": lambda: build_grammar(recipe),
        "meteor": meteor,
    }
    weights = {name: weight for name, weight in vars(recipe.reward).items() if weight}
    return Mix({name: makers[name]() for name in weights}, weights)


def _listener(recipe: Recipe, dataset: CaptionDataset) -> ClipListener | None:
    """The listener, which knows the training images if the reward or the method asks it about them."""
    if recipe.listener.path is None:
        return None
    section = recipe.listener
    listener = load_listener(
        str(section.path), name="listener", prefix=section.prefix, size=recipe.data.size, base=section.base
    )
    if recipe.reward.clip_s or "listener" in METHODS[recipe.method].needs:
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
    dataset: CaptionDataset,
    captioner: Captioner,
    listener: ClipListener | None,
    reader: LanguageModel | None,
    own_listener: owned.OwnListener | None,
) -> tuple[Watch | None, list[tuple[str, str]]]:
    """The evaluation, with its retrievers, and the images it leaves out."""
    section, data = recipe.evaluation, recipe.data
    if section.split is None:
        return None, []
    own = section.path is not None and section.path != data.path
    features = features_at(section.features or data.features)
    watched = load_pictured(
        section.path or data.path,
        section.split,
        images=section.images or (None if own else data.images),
        format=None if own else data.format,
        size=data.size,
        limit=section.limit,
        missing_files=data.on_error == "skip",
        features=features,
    )
    watched, skipped = usable(watched, data.on_error, features, pictures=needs_pictures(recipe))
    _tell_what_is_seen(watched, dataset)
    workers = recipe.training.dataloader_num_workers
    scorers = load_scorers(watched, pac=section.pac, pac_base=section.pac_base, itm=section.itm, size=data.size)
    evaluation = Evaluation(
        watched,
        collate_of(captioner, features),
        listeners=_retrievers(recipe, watched, listener, features),
        decoding=decoding(section.num_beams, section.max_new_tokens, no_repeat_ngram_size=section.no_repeat_ngram_size),
        measures=_measures(recipe, watched, section.split, reader),
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


def _tell_what_is_seen(watched: CaptionDataset, trained: CaptionDataset) -> None:
    """Say how many images of the evaluation are trained on."""
    seen = sum(
        example.id in trained.position and trained[trained.position[example.id]] == example for example in watched
    )
    if seen:
        note(f"note: {seen} of the {len(watched)} images of the evaluation are trained on: set evaluation.path.")


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
