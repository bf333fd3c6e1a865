"""Everything a training needs, built from a resolved recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tellapart.captioners.base import Captioner
from tellapart.captioners.contract import check_captioner
from tellapart.cli.console import note
from tellapart.cli.measured import without_broken
from tellapart.cli.models import as_usage_errors, decoding, device, load_captioner, load_data, load_listener, truth_of
from tellapart.cli.names import resolve
from tellapart.cli.recipe import Recipe
from tellapart.cli.schema import RewardSection
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.results import EvaluationResult
from tellapart.listeners.clip import ClipListener
from tellapart.objectives import METHODS
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
    dataset = load_data(
        section.path,
        section.split,
        images=section.images,
        format=section.format,
        size=section.size,
        limit=section.limit,
        missing_files=section.on_error == "skip",
    )
    dataset, skipped = without_broken(dataset, section.on_error)
    if METHODS[recipe.method].needs_references:
        dataset.require_references(f"method {recipe.method}")
    captioner = load_captioner(recipe.captioner, size=section.size, seed=recipe.training.seed).to(device())
    collate = Collate({captioner.name: captioner.process})
    # train checks again; here a wrong model is told before the listener has looked at every image
    check_captioner(captioner, collate(two_pictures(dataset)).to(device()))
    listener = _listener(recipe, dataset)
    parts: dict[str, Captioner | Reward] = {"captioner": captioner}
    if METHODS[recipe.method].needs_reward:
        parts["reward"] = build_reward(recipe.reward, dataset, listener)
    with as_usage_errors("objective"):
        objective = resolve(METHODS[recipe.method].target)(**parts, **recipe.objective)
    watch, skipped_watched = _watch(recipe, dataset, collate, listener)
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


def build_reward(section: RewardSection, dataset: CaptionDataset, listener: ClipListener | None) -> Reward:
    """The weighted sum of the rewards that have a weight.

    Raises:
        UsageError: a reward needs references that the data lack.
    """

    def cider_d() -> Reward:
        dataset.require_references("reward cider_d")
        return CiderD(DocumentFrequencies.from_references(dataset.references))

    def clip_s() -> Reward:
        assert listener is not None, "check_together asks for one"
        return Similarity(listener)

    makers: dict[str, Callable[[], Reward]] = {"clip_s": clip_s, "cider_d": cider_d}
    weights = {name: weight for name, weight in vars(section).items() if weight}
    return Mix({name: makers[name]() for name in weights}, weights)


def _listener(recipe: Recipe, dataset: CaptionDataset) -> ClipListener | None:
    """The listener, which knows the training images if the reward asks it about them."""
    if recipe.listener.path is None:
        return None
    section = recipe.listener
    listener = load_listener(str(section.path), name="listener", prefix=section.prefix, size=recipe.data.size)
    if recipe.reward.clip_s:
        listener.cache_images(dataset)
    return listener


def _watch(
    recipe: Recipe, dataset: CaptionDataset, collate: Collate, listener: ClipListener | None
) -> tuple[Watch | None, list[tuple[str, str]]]:
    """The evaluation, with its retrievers, and the images it leaves out."""
    section, data = recipe.evaluation, recipe.data
    if section.split is None:
        return None, []
    own = section.path is not None and section.path != data.path
    watched = load_data(
        section.path or data.path,
        section.split,
        images=section.images or (None if own else data.images),
        format=None if own else data.format,
        size=data.size,
        limit=section.limit,
        missing_files=data.on_error == "skip",
    )
    watched, skipped = without_broken(watched, data.on_error)
    seen = sum(
        example.id in dataset.position and dataset[dataset.position[example.id]] == example for example in watched
    )
    if seen:
        note(f"note: {seen} of the {len(watched)} images of the evaluation are trained on: set evaluation.path.")
    listeners = {} if listener is None else {"listener": listener}
    if section.judge is not None:
        listeners["judge"] = load_listener(section.judge, name="judge", size=data.size)
    for retriever in listeners.values():
        retriever.cache_images(watched)
    how = decoding(section.num_beams, section.max_new_tokens)
    truth = truth_of(section.path or data.path, section.split, size=data.size, dataset=watched)
    workers = recipe.training.dataloader_num_workers
    evaluation = Evaluation(watched, collate, listeners=listeners, decoding=how, measures=truth, num_workers=workers)
    return Watch(evaluation, recipe.training.output_dir.name), skipped
