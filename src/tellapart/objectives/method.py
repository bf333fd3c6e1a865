"""What the command line needs to know of a training method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tellapart.errors import UsageError


@dataclass(frozen=True)
class Method:
    """What the command line needs to know of a method before importing it.

    Args:
        summary: one line for the table of methods.
        target: ``module:class`` of the objective.
        needs_references: whether training images must have human captions, whatever the reward.
        paper: where the method comes from.
        needs: what its constructor is given beside the captioner; each is built from a section of the recipe: reward,
            listener, own_listener (which learns beside it), neighbours, discriminator, grammar, distance, critic (which learns
            beside it), penalties, phi_weight (that of reward).
        fixed: constructor arguments that make the method what it is, and so are no options.
        through_words: whether gradients flow through the words of captions, which the captioner and its own listener must
            allow.
        keeps: parts that it leaves as they are: captioner or own_listener.
        holds_start: whether it always keeps the start model beside the captioner; with a ``kl_coef`` any method does.
    """

    summary: str
    target: str
    needs_references: bool
    paper: str
    needs: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    through_words: bool = False
    keeps: tuple[str, ...] = ()
    holds_start: bool = False

    @property
    def needs_reward(self) -> bool:
        """Whether the objective takes the reward that the recipe mixes."""
        return "reward" in self.needs


# Methods that other installed packages bring: ``[project.entry-points."tellapart.methods"]`` of their ``pyproject.toml``.

GROUP = "tellapart.methods"


def installed_methods(known: Iterable[str], found: Iterable[EntryPoint] | None = None) -> Mapping[str, Method]:
    """Name -> method of every installed package that offers one.

    Args:
        known: names that are taken.
        found: what packages offer; by default what is installed.

    Raises:
        UsageError: an offer cannot be loaded, is no :class:`Method`, or has a name that is taken.
    """
    methods: dict[str, Method] = {}
    for offer in entry_points(group=GROUP) if found is None else found:
        source = f"the package {offer.dist.name!r}" if offer.dist else "an installed package"
        if offer.name in {*known, *methods}:
            raise UsageError(
                f"{source} offers a method {offer.name!r}, a name that is taken: rename it, or uninstall one."
            )
        try:
            method = offer.load()
        except (ImportError, AttributeError, SyntaxError) as error:
            raise UsageError(
                f"the method {offer.name!r} of {source} cannot be loaded ({error}): update or uninstall the package."
            ) from error
        if not isinstance(method, Method):
            raise UsageError(
                f"{offer.value}, which {source} offers as method {offer.name!r}, is no tellapart.objectives.Method: name one."
            )
        methods[offer.name] = method
    return methods


class Methods(Mapping[str, Method]):
    """Methods by name: the shipped ones, then those of installed packages, which are looked for only when they are needed.

    Args:
        shipped: of this package.
    """

    def __init__(self, shipped: Mapping[str, Method]) -> None:
        self._shipped = shipped

    @cached_property
    def _installed(self) -> Mapping[str, Method]:
        return installed_methods(self._shipped)

    def __getitem__(self, name: str) -> Method:
        """The method of a name.

        Raises:
            KeyError: there is none.
            UsageError: an installed package's offer cannot be used.
        """
        return self._shipped[name] if name in self._shipped else self._installed[name]

    def __iter__(self) -> Iterator[str]:
        """Names, the shipped ones first."""
        yield from self._shipped
        yield from self._installed

    def __len__(self) -> int:
        """How many there are."""
        return len(self._shipped) + len(self._installed)
