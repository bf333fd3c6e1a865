"""What an objective is given beside the captioner, built from the sections of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.captioners.base import Captioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.remember import RememberingTexts
from tellapart.names import resolve
from tellapart.objectives import METHODS
from tellapart.recipe.critics import build_critic, build_penalties, check_critic
from tellapart.recipe.load import Recipe
from tellapart.recipe.models import as_usage_errors, load_grammar, load_listener
from tellapart.recipe.own_listener import check_own_listener
from tellapart.types import Reward

if TYPE_CHECKING:
    from tellapart.listeners.neighbours import Neighbours
    from tellapart.rewards.discriminator import Discriminator
    from tellapart.rewards.distances import Distance
    from tellapart.rewards.grammar import Grammar


def build_objective(
    recipe: Recipe,
    captioner: Captioner,
    dataset: CaptionDataset,
    collate: Collate,
    listener: ClipListener | None,
    reward: Callable[[], Reward],
    own_listener: Any = None,
) -> Any:
    """The objective of a recipe, with every part that its method needs.

    Args:
        recipe: which method, and its numbers.
        captioner: what is trained.
        dataset: the training images.
        collate: makes the captioner's batches.
        listener: the reward's, which knows the training images.
        reward: builds the mixed reward, for methods that take one.
        own_listener: the captioner's own listener, for methods that take one.

    Raises:
        UsageError: a part is missing or broken, or a number cannot be used.
    """
    method = METHODS[recipe.method]
    memory = None if listener is None else RememberingTexts(listener)
    makers: dict[str, Callable[[], Any]] = {
        "reward": reward,
        "listener": lambda: memory,
        "own_listener": lambda: own_listener,
        "neighbours": lambda: _neighbours(recipe, dataset, listener),
        "discriminator": lambda: _discriminator(recipe, captioner, dataset, collate, memory),
        "grammar": lambda: build_grammar(recipe),
        "distance": lambda: _distance(recipe, dataset),
        "critic": lambda: build_critic(recipe, captioner),
        "penalties": lambda: build_penalties(recipe, captioner),
        "phi_weight": lambda: recipe.reward.phi,
    }
    parts = {name: makers[name]() for name in method.needs if name != "discriminator"}

    def make(**more: Any) -> Any:
        with as_usage_errors("objective"):
            return resolve(method.target)(captioner, **parts, **more, **method.fixed, **recipe.objective)

    objective = make()  # a number that cannot be used is told before a discriminator is pre-trained, which takes long
    return make(discriminator=makers["discriminator"]()) if "discriminator" in method.needs else objective


def check_parts(recipe: Recipe) -> None:
    """Raise where the method's parts and the recipe's sections contradict each other; nothing is loaded for it.

    Raises:
        UsageError: naming the option to change.
    """
    check_own_listener(recipe)
    check_critic(recipe)
    method, name = METHODS[recipe.method], recipe.method
    if "listener" in method.needs and recipe.listener.path is None:
        raise UsageError(f"method {name} needs a listener: set listener.path to a CLIP model, such as world/listener.")
    if "grammar" in method.needs and recipe.parts["grammar"] is None:
        raise UsageError(f"method {name} needs a judge of grammar: set grammar.path, such as world/grammar.")
    ranks = recipe.objective.get("neighbour_ranks")
    if "neighbours" not in method.needs or not ranks:
        return
    section = recipe.parts["neighbours"]
    if section is None:
        raise UsageError("neighbours is null, but objective.neighbour_ranks asks for some: set the ranks to [].")
    if section.path is None and section.k < max(ranks):
        raise UsageError(
            f"objective.neighbour_ranks asks for neighbour {max(ranks)}, but neighbours.k is {section.k}: raise k."
        )


def _neighbours(recipe: Recipe, dataset: CaptionDataset, listener: ClipListener | None) -> Neighbours | None:
    """The look-alikes of the training images: read, or mined and kept in the cache."""
    section = recipe.parts["neighbours"]
    if section is None or not recipe.objective["neighbour_ranks"]:
        return None
    if section.path is not None:
        from tellapart.listeners.neighbours import Neighbours

        neighbours = Neighbours.load(section.path)
        _check_neighbours(neighbours, section.path, dataset, max(recipe.objective["neighbour_ranks"]))
        return neighbours
    from tellapart.listeners.mining import mine

    looks = listener
    if section.listener is not None and section.listener != recipe.listener.path:
        looks = load_listener(section.listener, name="neighbours", size=recipe.data.size)
    assert looks is not None, "check_parts asks for one"
    return mine(looks, dataset, section.k)


def _check_neighbours(neighbours: Neighbours, path: Path, dataset: CaptionDataset, rank: int) -> None:
    """Raise now, not in the middle of the training, where a file of neighbours does not fit the training images."""
    if neighbours.k < rank:
        raise UsageError(
            f"objective.neighbour_ranks asks for neighbour {rank}, but {path} has {neighbours.k} of each image: mine more "
            "with tellapart mine --k, or lower the ranks."
        )
    for name, row in zip(dataset.ids, neighbours.of(dataset.ids), strict=True):
        strangers = [near for near in row if near not in dataset.position]
        if strangers:
            raise UsageError(
                f"{path} gives image {name!r} the neighbour {strangers[0]!r}, which is no training image: mine the training "
                "images alone."
            )


def _discriminator(
    recipe: Recipe, captioner: Captioner, dataset: CaptionDataset, collate: Collate, memory: RememberingTexts | None
) -> Discriminator | None:
    """The discriminator, pre-trained against the start captioner where it is not in the cache."""
    settings = recipe.parts["discriminator"]
    if settings is None:
        return None
    if recipe.flags.dry_run:
        settings = replace(settings, pretraining_steps=0)
    from tellapart.pretraining.discriminator import pretrained_discriminator

    assert memory is not None, "check_parts asks for a listener"
    assert isinstance(memory.listener, ClipListener)
    discriminator = pretrained_discriminator(captioner, memory.listener, dataset, collate, settings)
    discriminator.listener = memory  # so that it does not embed the captions of a step a second time
    return discriminator


def _distance(recipe: Recipe, dataset: CaptionDataset) -> Distance:
    """What tells how far the captions of an image are from one another.

    Raises:
        UsageError: it needs references that the data lack.
    """
    from tellapart.rewards.distances import CiderDistance, bleu_distance, edit_distance
    from tellapart.rewards.reference import DocumentFrequencies

    def cider() -> Distance:
        dataset.require_references("distance.kind=cider")
        return CiderDistance(DocumentFrequencies.from_references(dataset.references, end=""))

    makers: dict[str, Callable[[], Distance]] = {
        "bleu": lambda: bleu_distance,
        "edit": lambda: edit_distance,
        "cider": cider,
    }
    section = recipe.parts["distance"]
    return makers["bleu" if section is None else section.kind]()


def build_grammar(recipe: Recipe) -> Grammar:
    """The frozen judge of grammar, on this process's device."""
    return load_grammar(recipe.parts["grammar"].path, size=recipe.data.size)
