"""The reward of a recipe: what it needs, and the weighted sum of its parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.matching import Matcher
from tellapart.metrics.scores import CLIP_WEIGHT, PAC_WEIGHT
from tellapart.objectives import METHODS
from tellapart.recipe.parts import build_grammar
from tellapart.rewards.language_model import LanguageModel, MeanLogProbability
from tellapart.rewards.matching import Matching
from tellapart.rewards.meteor import Meteor
from tellapart.rewards.mix import Mix
from tellapart.rewards.reference import CiderD, DocumentFrequencies
from tellapart.rewards.similarity import RefSimilarity, Similarity
from tellapart.types import Reward

if TYPE_CHECKING:
    from tellapart.recipe.load import Recipe
    from tellapart.recipe.sections import RewardSection


LISTENING: dict[str, tuple[bool, float]] = {
    "clip_s": (False, CLIP_WEIGHT),
    "ref_clip_s": (True, CLIP_WEIGHT),
    "pac_s": (False, PAC_WEIGHT),
    "ref_pac_s": (True, PAC_WEIGHT),
}
"""Reward by the listener -> whether it reads the references, too, and the weight of the cosine."""


def check_reward(recipe: Recipe) -> None:
    """Raise where the method, the weights of the rewards and the models that these ask contradict each other.

    Raises:
        UsageError: naming the option to change.
    """
    method, reward = METHODS[recipe.method], recipe.reward
    weights = _of_captions(reward)
    if method.needs_reward and not any(weights.values()):
        raise UsageError(f"method {recipe.method} needs a reward: give {' or '.join(weights)} of reward a weight.")
    if not method.needs_reward and any(weights.values()):
        raise UsageError(f"method {recipe.method} takes no reward: leave reward out, or choose another method.")
    for name in listening(reward)[:1]:
        if recipe.listener.path is None:
            raise UsageError(
                f"reward.{name} needs a listener: set listener.path to a CLIP model, such as world/listener."
            )
    if reward.language_model and recipe.language_model.path is None:
        raise UsageError("reward.language_model needs a model: set language_model.path to a causal one, such as gpt2.")
    if reward.grammar and recipe.parts["grammar"] is None:
        raise UsageError("reward.grammar needs a grammar head: set grammar.path, such as world/grammar.")


def listening(reward: RewardSection) -> list[str]:
    """The rewards with a weight that ask the listener."""
    return [name for name in LISTENING if vars(reward)[name]]


def _of_captions(reward: RewardSection) -> dict[str, float]:
    """The weights of rewards that tell what a caption is worth without looking at the others of a step."""
    return {name: weight for name, weight in vars(reward).items() if name != "phi"}


def build_reward(
    recipe: Recipe,
    dataset: CaptionDataset,
    listener: ClipListener | None,
    language_model: LanguageModel | None,
    matcher: Matcher | None = None,
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

    def fluency() -> Reward:
        assert language_model is not None, "check_together asks for one"
        return MeanLogProbability(language_model)

    def itm() -> Reward:
        assert matcher is not None, "check_matcher asks for one"
        return Matching(matcher)

    makers: dict[str, Callable[[], Reward]] = {
        **{name: partial(_similarity, name, dataset, listener) for name in LISTENING},
        "cider_d": cider_d,
        "language_model": fluency,
        "grammar": lambda: build_grammar(recipe),
        "meteor": meteor,
        "itm": itm,
    }
    weights = {name: weight for name, weight in _of_captions(recipe.reward).items() if weight}
    return Mix({name: makers[name]() for name in weights}, weights)


def _similarity(name: str, dataset: CaptionDataset, listener: ClipListener | None) -> Reward:
    assert listener is not None, "check_together asks for one"
    reads_references, weight = LISTENING[name]
    if reads_references:
        dataset.require_references(f"reward {name}")
    return (RefSimilarity if reads_references else Similarity)(listener, weight=weight)
