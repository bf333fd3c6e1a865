"""What a recipe needs to know of a reward before it imports the reward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tellapart.names import loaded, summary_of


@dataclass(frozen=True)
class RewardKind:
    """A reward that recipes name.

    Args:
        summary: one line: what it is, its range and its source.
        target: the class or function that makes the reward, or ``"module:attribute"`` of it. Its arguments without a default are
            parts of the training, by name (``listener``, ``matcher``, ``captioner``, ...); keyword-only ones are options.
        needs: the parts that it is given.
        fixed: arguments that make the reward what it is, and so are not options.
        needs_references: whether training images must have human captions.
        needs_context: whether training images must have a context.
        control: whether only studies may use it, as a control.
        judges_truth: whether its matcher decides what is true, so that one of the built-in world must have been shown to.
    """

    summary: str
    target: str | Callable[..., Any]
    needs: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    needs_references: bool = False
    judges_truth: bool = False
    needs_context: bool = False
    control: bool = False

    @staticmethod
    def of(value: Any) -> RewardKind:
        """A reward as packages and plugin files offer it: a ``RewardKind``, or the class or function itself.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(value, RewardKind):
            return value
        summary = summary_of(value, "reward")
        parameters = inspect.signature(value).parameters.values()
        needs = tuple(p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD)
        return RewardKind(summary, value, needs)

    def load(self) -> Callable[..., Any]:
        """What makes the reward, imported now."""
        return loaded(self.target)
