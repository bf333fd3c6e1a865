"""The reward of a recipe: the weighted sum of its entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.errors import UsageError
from tellapart.recipe.models import require_fit
from tellapart.recipe.options import as_usage_errors
from tellapart.rewards.mix import Mix

if TYPE_CHECKING:
    from tellapart.recipe.parts import Parts
    from tellapart.recipe.recipe import Recipe
    from tellapart.types import Reward


def check_reward(recipe: Recipe) -> None:
    """Raise where the method and the rewards contradict each other.

    Raises:
        UsageError: naming the option to change.
    """
    if recipe.kind.needs_reward and not recipe.reward:
        known = ", ".join(recipe.catalogue.rewards)
        usual = (*recipe.kind.rewards, "clip_s")[0]
        raise UsageError(
            f"method {recipe.method} needs a reward: add one of {known}, such as --reward.{usual} 1 or "
            f"reward: [{{name: {usual}, weight: 1.0}}]."
        )
    if not recipe.kind.needs_reward and recipe.reward:
        raise UsageError(f"method {recipe.method} takes no reward: leave reward out, or choose another method.")


def refuse_controls(recipe: Recipe) -> None:
    """Raise where a recipe is rewarded by a control, such as the oracle: no training but a study's.

    Raises:
        UsageError: naming the reward.
    """
    for entry in recipe.reward:
        if recipe.catalogue.rewards[entry.name].control:
            raise UsageError(
                f"reward {entry.name} is a control for studies of the built-in world (docs/how-to/studies.md), not a reward to "
                "train with: use truth with a matcher instead."
            )


def build_reward(parts: Parts) -> Reward:
    """The weighted sum of the rewards of a recipe.

    Args:
        parts: builds what the rewards ask.

    Raises:
        UsageError: a reward needs references or contexts that the data lack, or an option cannot be used.
    """
    rewards: dict[str, Reward] = {}
    for entry in parts.recipe.reward:
        kind = parts.recipe.catalogue.rewards[entry.name]
        if kind.needs_references:
            parts.dataset.require_references(f"reward {entry.name}")
        if kind.needs_context and not any(example.context for example in parts.dataset):
            raise UsageError(
                f"reward {entry.name} needs contexts, but no training image has one, so that every reward would be 0: name their "
                "column as data.context_column."
            )
        if kind.judges_truth:
            model = (entry.parts.get("matcher") or parts.recipe.parts["matcher"]).model
            require_fit(str(model), "truth", data=parts.recipe.data.path, size=parts.size)
        given = {name: parts(name, entry.parts.get(name)) for name in kind.needs}
        with as_usage_errors(f"reward.{entry.name}"):
            rewards[entry.name] = kind.load()(**given, **kind.fixed, **entry.options)
    return Mix(rewards, {entry.name: entry.weight for entry in parts.recipe.reward})
