"""Everything a training needs, built from a recipe."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from tellapart.captioners.base import Captioner
from tellapart.captioners.contract import check_captioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.features.base import FeatureSet
from tellapart.data.load import require_existing
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.fluency import PerplexityMeasure
from tellapart.evaluation.grammar import GrammarMeasure
from tellapart.evaluation.measures import Measure
from tellapart.evaluation.meteor import MeteorMeasure
from tellapart.evaluation.results import EvaluationResult
from tellapart.frames import use_num_frames
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.kinds import require_cosines
from tellapart.listeners.late import LateListener
from tellapart.listeners.remember import RememberingTexts
from tellapart.listeners.vse import Vse
from tellapart.products import multiplies_bfloat16
from tellapart.recipe import own_listener as owned
from tellapart.recipe.claims import claim_scorers
from tellapart.recipe.feature_inputs import collate_of, features_at, start_captioner
from tellapart.recipe.images import (
    read_further,
    training_data,
    training_images,
    watched_images,
)
from tellapart.recipe.models import (
    VIDEO_WORLD,
    WORLD,
    decoding,
    device,
    load_grammar,
    load_language_model,
    load_scorers,
    truth_of,
)
from tellapart.recipe.options import as_usage_errors
from tellapart.recipe.parts import OWN_LISTENER, Parts, check_parts
from tellapart.recipe.questions import question_measure
from tellapart.recipe.recipe import Recipe
from tellapart.recipe.rewards import build_reward, check_reward
from tellapart.recipe.selection import check_metrics, check_selection
from tellapart.recipe.sharding import check_sharding
from tellapart.recipe.soft_listeners import load_retriever, tell_same
from tellapart.training.start import two_pictures

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """The parts of a training.

    Args:
        recipe: what it was built from.
        captioner: what is trained.
        objective: how.
        dataset: the training images.
        data: the same, as the loop reads them.
        watch: the evaluation, if there is one.
        skipped: id and reason of the images that are left out because they cannot be read, those of the evaluation and
            unlabelled ones included.
    """

    recipe: Recipe
    captioner: Captioner
    objective: Any  # both an Objective and an nn.Module, which no type can say
    dataset: CaptionDataset
    data: TrainingData
    watch: Watch | None
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def evaluate(self) -> Evaluation | None:
        """The evaluation during training, if there is one: a callable ``captioner -> EvaluationResult``."""
        return None if self.watch is None else self.watch.evaluation


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


def build(recipe: Recipe, *, dry_run: bool = False) -> Built:
    """Data, captioner, reward, objective and evaluation of a recipe; the captioner is checked on two images.

    Args:
        recipe: what to build.
        dry_run: leave out what takes long, such as pre-training a discriminator.

    Raises:
        UsageError: a part is missing, broken, or does not go with another.
    """
    section = recipe.data
    if section.path not in (WORLD, VIDEO_WORLD):
        require_existing(section.path)  # before what is asked of these data, such as a metric of the built-in world
    check_together(recipe)
    features = features_at(section.features)
    dataset, held, skipped = training_images(recipe, features)
    if recipe.kind.needs_references:
        dataset.require_references(f"method {recipe.method}")
    _require_labelled(recipe, dataset)
    seed = recipe.training.seed
    captioner = start_captioner(recipe.captioner, dataset, features, size=section.size, seed=seed)
    whole = dry_run or recipe.training.shard == "none"
    if whole:  # else it may not fit: it is cut on its way to the device, and checked then
        captioner.to(device())
    _tell_of_bfloat16(recipe)
    use_num_frames(captioner, section.num_frames, "data.num_frames")
    collate = collate_of(captioner, features)
    # train checks again; here a wrong model is reported before the listener has read every image
    sample = training_data(recipe, dataset, collate).sample
    if whole:
        check_captioner(captioner, collate(two_pictures(sample, collate)).to(device()))
    parts = Parts(recipe, captioner, dataset, collate, features, dry_run=dry_run)
    objective = build_objective(parts)
    collate = Collate(collate.processors | parts.processors, features=collate.features)
    own = parts(OWN_LISTENER) if OWN_LISTENER in recipe.kind.needs else None
    owned.check_unrolling(recipe, captioner, own, objective, (sample, collate))
    watch, skipped_watched = _watch(parts, (dataset, held), own)
    skipped = list(dict.fromkeys(skipped + parts.skipped + skipped_watched))
    data = training_data(recipe, dataset, collate, further=read_further(parts))
    return Built(recipe, captioner, objective, dataset, data, watch, skipped)


def _require_labelled(recipe: Recipe, dataset: CaptionDataset) -> None:
    """Raise where a reward is asked of images with human captions alone, and there are none."""
    asks = recipe.kind.needs_reward and "unlabelled" in recipe.kind.needs
    if asks and not any(text.strip() for example in dataset for text in example.references):
        raise UsageError(
            f"method {recipe.method} asks its reward of images with human captions, but no image of {dataset.name} has one: give "
            "such images as data.path and the others as unlabelled.path, or choose another method."
        )


def _tell_of_bfloat16(recipe: Recipe) -> None:
    """Say where captions would be drawn in a precision that this processor imitates."""
    if recipe.captioner.rollout_dtype == "bfloat16" and device().type == "cpu" and not multiplies_bfloat16():
        logger.warning(
            "note: this processor has no instructions for bfloat16, so captioner.rollout_dtype makes drawing slower: leave it "
            "out."
        )


def check_together(recipe: Recipe) -> None:
    """Raise where sections contradict each other; nothing is loaded for it.

    Raises:
        UsageError: naming the option to change.
    """
    check_reward(recipe)
    check_parts(recipe)
    check_sharding(recipe)
    check_metrics(recipe)


def build_objective(parts: Parts) -> Any:
    """The objective of a recipe, with every part that its method needs.

    Args:
        parts: of the training.

    Raises:
        UsageError: a part is missing or broken, or a number cannot be used.
    """
    recipe, method = parts.recipe, parts.recipe.kind
    given: dict[str, Any] = {}
    for name in method.needs:
        if name == "reward":
            given[name] = build_reward(parts)
        elif name == "listener":
            require_cosines(parts(name), f"method {recipe.method}")
            given[name] = RememberingTexts(parts(name))
        elif name != "discriminator":
            given[name] = parts(name)

    def make(**more: Any) -> Any:
        with as_usage_errors("objective"):
            return method.load()(parts.captioner, **given, **more, **method.fixed, **recipe.objective)

    objective = make()  # an unusable number is reported before a discriminator is pre-trained, which takes long
    if "discriminator" not in method.needs:
        return objective
    discriminator = parts("discriminator")
    if discriminator is not None:
        discriminator.listener = given["listener"]  # so that it does not embed the captions of a step a second time
    return make(discriminator=discriminator)


def _perplexity(parts: Parts) -> tuple[Measure, ...]:
    """Perplexity as a measure of the evaluation, if it names a language model; the reward's own is not loaded twice."""
    recipe = parts.recipe
    path, section = recipe.evaluation.language_model, recipe.parts.get("language_model")
    if path is None:
        return ()
    if section is not None and (section.path, section.dtype) == (path, "float32"):
        return (PerplexityMeasure(parts("language_model")),)
    return (PerplexityMeasure(load_language_model(path, size=recipe.data.size)),)


def _watch(
    parts: Parts, images: tuple[CaptionDataset, CaptionDataset | None], own: owned.OwnListener | None
) -> tuple[Watch | None, list[tuple[str, str]]]:
    """The evaluation, with its retrievers, and the images it leaves out; ``images`` are those trained on and held out."""
    recipe, (dataset, held) = parts.recipe, images
    section, data = recipe.evaluation, recipe.data
    if section.split is None and held is None:
        return None, []
    split = str(section.split) if held is None else data.split
    features = features_at(section.features or data.features)
    watched, skipped = watched_images(recipe, dataset, features, split) if held is None else (held, [])
    check_selection(recipe, watched)
    workers = recipe.training.workers(device().type)
    scorers = load_scorers(
        watched,
        pac=section.pac,
        pac_base=section.pac_base,
        itm=section.itm,
        vqa_score=section.vqa_score,
        size=data.size,
    )
    path = section.path or data.path
    scorers += claim_scorers(section.claims, None, watched, data=path, split=split, size=data.size)
    evaluation = Evaluation(
        watched,
        collate_of(parts.captioner, features),
        listeners=_retrievers(parts, watched, features),
        decoding=decoding(
            section.num_beams,
            section.max_new_tokens,
            no_repeat_ngram_size=section.no_repeat_ngram_size,
            min_new_tokens=section.min_new_tokens,
        ),
        measures=_measures(parts, watched, split),
        scorers=[*scorers, *owned.own_scorers(own, watched, num_workers=workers)],
        num_workers=workers,
        samples=section.samples,
    )
    return Watch(evaluation, recipe.training.output_dir.name), skipped


def _measures(parts: Parts, watched: CaptionDataset, split: str) -> tuple[Measure, ...]:
    """Measures of captions in addition to those of every evaluation."""
    section, data = parts.recipe.evaluation, parts.recipe.data
    found = truth_of(section.path or data.path, split, size=data.size, dataset=watched)
    found += _perplexity(parts)
    if section.grammar is not None:
        found += (GrammarMeasure(load_grammar(section.grammar, size=data.size)),)
    if section.meteor:
        found += (MeteorMeasure(watched.references),)
    path = section.path or data.path
    return found + question_measure(section.reader, section.questions, watched, data=path, split=split, size=data.size)


Retriever = ClipListener | LateListener | Vse


def _retrievers(parts: Parts, watched: CaptionDataset, features: FeatureSet | None) -> dict[str, Retriever]:
    """The evaluation's listener (else the recipe's) and judge, where there are such, which know its images."""
    recipe = parts.recipe
    size, section, found = recipe.data.size, recipe.listener, dict[str, Retriever]()
    if section.path is not None and recipe.users("listener"):
        found["listener"] = parts("listener").with_own_images()
    elif section.path is not None:
        found["listener"] = load_retriever(
            section.path,
            name="listener",
            prefix=section.prefix,
            size=size,
            base=section.base,
            text_pooling=section.text_pooling,
        )
    for name, path in (("listener", recipe.evaluation.listener), ("judge", recipe.evaluation.judge)):
        if path is not None:
            found[name] = load_retriever(path, name=name, size=size, features=features)
    tell_same(found)
    for retriever in found.values():
        retriever.cache_images(watched)
    return found
