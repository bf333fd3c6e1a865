"""Extensions by other installed packages and files: methods, rewards and parts by name, in addition to the shipped ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from tellapart.errors import UsageError

T = TypeVar("T")


class Offers(Mapping[str, T], Generic[T]):
    """Things by name: the shipped ones, then those of a group of entry points, which is looked up only when it is needed.

    Args:
        shipped: of this package.
        group: of entry points, such as ``tellapart.rewards``.
        kind: what one of them is, for errors: ``reward``.
        accept: makes the thing of what a package offers; raises ``TypeError`` where it is of another kind.
        found: what packages offer; by default what is installed.

    Raises:
        UsageError: on use: an offer cannot be loaded, is of another kind, or has a name that is taken.
    """

    def __init__(
        self,
        shipped: Mapping[str, T],
        group: str,
        kind: str,
        accept: Callable[[Any], T],
        found: Iterable[EntryPoint] | None = None,
    ) -> None:
        self._shipped, self.group, self.kind, self._accept, self._found = shipped, group, kind, accept, found

    @cached_property
    def _installed(self) -> Mapping[str, T]:
        things: dict[str, T] = {}
        for offer in entry_points(group=self.group) if self._found is None else self._found:
            source = f"the package {offer.dist.name!r}" if offer.dist else "an installed package"
            try:
                value = offer.load()
            except Exception as error:  # whatever a package raises when it is imported
                raise UsageError(
                    f"the {self.kind} {offer.name!r} of {source} cannot be loaded ({error}): update or uninstall the package."
                ) from error
            things[offer.name] = self._taken_in(offer.name, value, source, [*self._shipped, *things])
        return things

    def _taken_in(self, name: str, value: Any, source: str, known: Iterable[str]) -> T:
        if name in known:
            raise UsageError(
                f"{source} offers a {self.kind} {name!r}, a name that is taken: rename it, or leave one of them out."
            )
        try:
            return self._accept(value)
        except TypeError as error:
            raise UsageError(f"{source} offers {name!r} as a {self.kind}, but it {error}: correct it.") from error

    def extended(self, more: Mapping[str, Any], source: str) -> Offers[T]:
        """These and more.

        Args:
            more: name -> what a file offers.
            source: the file, for errors.

        Raises:
            UsageError: one is of another kind, or has a name that is taken.
        """
        if not more:
            return self
        added = {name: self._taken_in(name, value, source, self) for name, value in more.items()}
        return Offers({**self, **added}, self.group, self.kind, self._accept, [])

    def __getitem__(self, name: str) -> T:
        return self._shipped[name] if name in self._shipped else self._installed[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._shipped, *self._installed])

    def __len__(self) -> int:
        return len(self._shipped) + len(self._installed)
