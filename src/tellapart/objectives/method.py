"""What the command line needs to know of a training method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tellapart.names import loaded


@dataclass(frozen=True)
class Method:
    """What the command line needs to know of a method before importing it.

    Args:
        summary: one line for the table of methods.
        target: class of the objective, or ``"module:class"``.
        needs_references: whether training images must have human captions, whatever the reward.
        paper: where the method comes from.
        needs: what its constructor is given besides the captioner; each is built from a section of the recipe: reward,
            listener, own_listener (which is trained with it), neighbours, discriminator, grammar, distance, critic (trained
            with it), penalties, noise (trained with it), unlabelled, other_captions, preferences, or a part that an installed
            package brings.
        fixed: constructor arguments that make the method what it is, and so are not options.
        through_words: whether gradients flow through the words of captions, which the captioner and its own listener must
            allow.
        keeps: parts that it does not train: captioner or own_listener.
        required: those of ``needs`` that a recipe cannot set to null.
        rewards: names of the rewards of its paper, which ``--method`` gives to a recipe that has none.
        holds_start: whether it always keeps the start model in addition to the captioner; with a ``kl_coef`` any method does.
    """

    summary: str
    target: str | type[Any]
    needs_references: bool
    paper: str
    needs: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    through_words: bool = False
    keeps: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    rewards: tuple[str, ...] = ()
    holds_start: bool = False

    @property
    def needs_reward(self) -> bool:
        """Whether the objective takes the reward that the recipe mixes."""
        return "reward" in self.needs

    @staticmethod
    def of(value: Any) -> Method:
        """A method as packages and plugin files offer it.

        Raises:
            TypeError: it is not a ``Method``.
        """
        if not isinstance(value, Method):
            raise TypeError("is not a tellapart.objectives.Method")
        return value

    def load(self) -> Any:
        """The class of the objective, imported now."""
        return loaded(self.target)
