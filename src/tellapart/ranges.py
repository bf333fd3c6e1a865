"""Ranges of numbers and sets of names, as the types of arguments: checked where a recipe is read, and where an object is made.

A type states its range once. A wrong value in a recipe or on a command line is reported before a model is loaded, editors have
the range from the JSON schema, and whoever calls a constructor gets a ``ValueError``.
"""

from __future__ import annotations

import inspect
import operator
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial, wraps
from types import UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

from annotated_types import Ge, Gt, Le, Lt

PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
NegativeFloat = Annotated[float, Lt(0)]
UnitFloat = Annotated[float, Ge(0), Le(1)]
"""From 0 to 1."""
OpenUnitFloat = Annotated[float, Gt(0), Lt(1)]
"""Between 0 and 1."""
PositiveUnitFloat = Annotated[float, Gt(0), Le(1)]
"""Above 0, at most 1."""

HalfOpenUnitFloat = Annotated[float, Ge(0), Lt(1)]
"""From 0, but below 1."""

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
AtLeastTwo = Annotated[int, Ge(2)]

_TESTS: Mapping[type, tuple[str, str, Callable[[Any, Any], bool]]] = {
    Gt: ("gt", "above", operator.lt),
    Ge: ("ge", "at least", operator.le),
    Lt: ("lt", "below", operator.gt),
    Le: ("le", "at most", operator.ge),
}
"""Limit -> the name of its value, how it is said, and the test of the limit and a value."""

P = ParamSpec("P")
R = TypeVar("R")


def in_range(make: Callable[P, R]) -> Callable[P, R]:
    """A constructor that checks its keyword arguments by the ranges of their types, before its own first line.

    Args:
        make: the constructor or function. What a caller leaves out is not checked.

    Returns:
        The same with the check; it raises ``ValueError`` where an argument is outside its range.

    Example:
        >>> @in_range
        ... def drawn(*, num_beams: AtLeastTwo = 5) -> int:
        ...     return num_beams
    """

    @wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        require(_ranged(make), kwargs)
        return make(*args, **kwargs)

    return checked


def require_fields(record: Any) -> None:
    """Check the fields of a dataclass by the ranges of their types.

    Raises:
        ValueError: a field is outside its range.
    """
    kind: Any = type(record)
    require(_field_types(kind), {field.name: getattr(record, field.name) for field in fields(record)})


def require(kinds: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Check values by the ranges of their types.

    Args:
        kinds: name -> type.
        values: name -> value; those without a type are not looked at.

    Raises:
        ValueError: a value is outside its range.
    """
    for name, value in values.items():
        if name in kinds and (wanted := _refused(kinds[name], value)):
            raise ValueError(f"{name}={value!r} must be {wanted}")


@cache
def _ranged(make: Callable[..., Any]) -> dict[str, Any]:
    """Name -> type of the arguments that can be checked. Types that are imported for checking only have no range."""
    found = {}
    for name, parameter in inspect.signature(make).parameters.items():
        kind = parameter.annotation
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        if isinstance(kind, str):
            try:
                kind = type_of(kind, make)
            except NameError:
                continue
        found[name] = kind
    return found


def type_of(annotation: str, function: Any) -> Any:
    """The type that an annotation names, where the function is defined.

    Args:
        annotation: as the function's signature has it.
        function: imported already, so that its annotations are trusted code.
    """
    return eval(annotation, getattr(function, "__globals__", {}))  # noqa: S307  # see above


@cache
def _field_types(record: Any) -> dict[str, Any]:
    return typing.get_type_hints(record, include_extras=True)


def _refused(kind: Any, value: Any) -> str:
    """What the value must be instead, in words; nothing where the type's range holds it."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and type(None) in choices:
        return ""
    ranged = [choice for choice in choices if typing.get_origin(choice) in (Annotated, Literal, *_LISTS, *_MAPPINGS)]
    others = tuple(choice for choice in choices if choice not in ranged and isinstance(choice, type))
    if not ranged or isinstance(value, others):
        return ""
    fitting = [choice for choice in ranged if _takes(typing.get_origin(choice), value)]
    told = [_refused_by(choice, value) for choice in fitting or ranged[:1]]
    return " or ".join(told) if all(told) else ""


_LISTS = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)


def _takes(origin: Any, value: Any) -> bool:
    """Whether a value is a mapping, a list or one thing as the type is."""
    if isinstance(value, Mapping) or origin in _MAPPINGS:
        return isinstance(value, Mapping) and origin in _MAPPINGS
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed == (origin in _LISTS)


def _refused_by(kind: Any, value: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is Literal:
        names = typing.get_args(kind)
        return "" if value in names else f"one of {', '.join(map(str, names))}"
    if origin is Annotated:
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            return f"a number, {limits_in_words(kind)}"
        if typing.get_args(kind)[0] is int and value % 1 != 0:
            return f"whole and {limits_in_words(kind)}"
        return "" if all(holds(value) for holds in _limits(kind)) else limits_in_words(kind)
    if not _takes(origin, value):
        return "a mapping" if origin in _MAPPINGS else "a list"
    inner = typing.get_args(kind)[-1 if origin in _MAPPINGS else 0]
    each = value.values() if origin in _MAPPINGS else value
    return next((f"{told} each" for one in each if (told := _refused(inner, one))), "")


def _limits(kind: Any) -> Iterator[Callable[[Any], bool]]:
    for limit in kind.__metadata__:
        if type(limit) in _TESTS:
            attribute, _, holds = _TESTS[type(limit)]
            yield partial(holds, getattr(limit, attribute))


def limits_in_words(kind: Any) -> str:
    """The range of an annotated type, after the noun: ``above 0``, ``from 0 to 1``."""
    found = {
        type(limit): getattr(limit, _TESTS[type(limit)][0]) for limit in kind.__metadata__ if type(limit) in _TESTS
    }
    if found.keys() == {Ge, Le}:
        return f"from {found[Ge]} to {found[Le]}"
    if found.keys() == {Gt, Lt}:
        return f"between {found[Gt]} and {found[Lt]}"
    return " and ".join(f"{_TESTS[made][1]} {limit}" for made, limit in found.items())
