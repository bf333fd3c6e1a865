"""The critic and the penalties of VLRM, from the sections of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.captioners.adapters import LoraOptions
from tellapart.errors import UsageError
from tellapart.metrics.phrases import EXEMPT, read_phrases, vlrm_phrases
from tellapart.recipe.options import as_usage_errors

if TYPE_CHECKING:
    from tellapart.captioners.critic import Critic
    from tellapart.recipe.parts import Parts
    from tellapart.recipe.recipe import Recipe
    from tellapart.recipe.sections import CriticSection, PenaltiesSection
    from tellapart.rewards.penalties import Penalties

Words = tuple[list[str], frozenset[str]]
"""Phrases that are penalised, and words that may be said twice."""


def _of_world() -> Words:
    from tellapart.world.phrases import EXEMPT_WORDS, world_phrases

    return world_phrases(), EXEMPT_WORDS


LISTS: dict[str, Callable[[], Words]] = {"vlrm": lambda: (vlrm_phrases(), EXEMPT), "world": _of_world}
"""Lists of phrases that recipes name."""


def check_critic(recipe: Recipe) -> None:
    """Raise where the sections ``critic`` and ``penalties`` cannot be used; nothing heavy is loaded for it.

    Raises:
        UsageError: naming the option to change.
    """
    needs = recipe.kind.needs
    if "critic" in needs and recipe.parts["critic"] is None:
        raise UsageError(
            f"method {recipe.method} needs a critic: leave critic out for the usual one, or give its options."
        )
    if "penalties" in needs and recipe.parts["penalties"] is not None:
        read_list(recipe.parts["penalties"].phrases)


def read_list(phrases: str | None) -> Words:
    """The words of a list that has a name here, or of a file.

    Raises:
        UsageError: there is no such list.
    """
    if phrases is None:
        return [], EXEMPT
    if phrases in LISTS:
        return LISTS[phrases]()
    if not Path(phrases).is_file():
        raise UsageError(
            f"penalties.phrases={phrases!r} is neither a file nor one of {', '.join(LISTS)}: correct it, or set it to null."
        )
    return read_phrases(Path(phrases)), EXEMPT


def build_critic(parts: Parts, section: CriticSection) -> Critic:
    """The critic of the captioner, whose first weights follow from the recipe's seed.

    Raises:
        UsageError: the captioner has nothing to adapt, or a number cannot be used.
    """
    return new_critic(parts.captioner, section, seed=parts.recipe.training.seed)


def new_critic(captioner: Any, section: CriticSection, *, seed: int) -> Critic:
    """The same without the other parts of a training."""
    from tellapart.captioners.critic import Critic
    from tellapart.draws import seeded

    with as_usage_errors("critic"), seeded("critic", seed):
        lora = None if section.lora is None else LoraOptions(**asdict(section.lora))
        return Critic(captioner, head=section.head, blocks=section.blocks, lora=lora)


def build_penalties(parts: Parts, section: PenaltiesSection | None) -> Penalties | None:
    """Which tokens of captions are penalised, as the captioner's tokenizer writes them; none where the section is null."""
    if section is None:
        return None
    from tellapart.rewards.penalties import Penalties

    phrases, exempt = read_list(section.phrases)
    return Penalties(parts.captioner.tokenizer, phrases, exempt=exempt, years=section.years)
