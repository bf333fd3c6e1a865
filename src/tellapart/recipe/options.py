"""Options from signatures: names, types, defaults and help of a section or a command, their validation, and its errors.

A section is a dataclass, or any callable whose keyword arguments are options. pydantic checks values; what it finds becomes one
sentence that names the option, where it was written, its value and the remedy. Imports no torch: ``--help`` reads this module.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import TextWrapper
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union

from docstring_parser import DocstringStyle
from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError, create_model
from pydantic_core import CoreSchema

from tellapart.errors import UsageError
from tellapart.ranges import limits_in_words, type_of
from tellapart.recipe.read_yaml import read_scalar

CONFIG = ConfigDict(
    extra="forbid", strict=True, protected_namespaces=(), arbitrary_types_allowed=True, allow_inf_nan=False
)
"""Strict as JSON: 1 is a number and no truth value, "1" is text; dataclasses below a model are read the same way."""

HELP_WIDTH = 100
"""Characters of the longest line of a help."""

LARGEST = 2**63
"""The least whole number that neither torch nor numpy can hold."""

REQUIRED: Any = inspect.Parameter.empty
"""The default of an option that must be given."""


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: of the argument or field.
        kind: its type.
        default: its value where nothing is given, or ``REQUIRED``.
        help: its line of the docstring.
    """

    name: str
    kind: Any
    default: Any
    help: str

    @property
    def shown_default(self) -> str:
        """The default as help shows it; empty where the option is required."""
        value = self.default
        if value is REQUIRED:
            return ""
        if dataclasses.is_dataclass(value):
            return json.dumps(plain(value))
        return json.dumps(value, default=str)


class Text(str):
    """A value as somebody typed it on a command line: its type follows from the option's."""


@dataclass(frozen=True)
class Given:
    """A value and where it was written.

    Args:
        value: a ``Text``, or what YAML or a program holds.
        shown: how an error names the option: ``--seed``, or ``seed in recipe.yaml:3``.
    """

    value: Any
    shown: str


def options_of(target: Any, *, skip: Sequence[str] = ()) -> dict[str, Option]:
    """The options of a dataclass, a class or a function, by name.

    Args:
        target: a dataclass, whose fields are the options, or a callable, whose keyword-only arguments are.
        skip: arguments that are given otherwise.
    """
    return {option.name: option for option in _options(target, tuple(skip))}


@cache
def _options(target: Any, skip: tuple[str, ...]) -> tuple[Option, ...]:
    told = _told(target)
    found = _fields if dataclasses.is_dataclass(target) else _arguments
    return tuple(Option(name, kind, default, told.get(name, "")) for name, kind, default in found(target, skip))


_STYLE = DocstringStyle.GOOGLE


@cache
def _told(target: Any) -> Mapping[str, str]:
    """What the docstring says of each argument. Fields that a dataclass inherits are documented where they are declared."""
    kinds = reversed(target.__mro__) if dataclasses.is_dataclass(target) and isinstance(target, type) else (target,)
    parsed = [parse_docstring(inspect.getdoc(kind) or "", _STYLE) for kind in kinds if kind is not object]
    told = {part.arg_name: part.description or "" for docstring in parsed for part in docstring.params}
    return {name: " ".join(text.replace("``", "").split()) for name, text in told.items()}


def _fields(target: Any, skip: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    hints = typing.get_type_hints(target, include_extras=True)
    for field in dataclasses.fields(target):
        if field.init and field.name not in skip:
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            yield field.name, hints[field.name], REQUIRED if default is dataclasses.MISSING else default


def _arguments(target: Any, skip: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    function: Any = vars(target).get("__init__", target.__init__) if isinstance(target, type) else target  # type: ignore[misc]
    function = inspect.unwrap(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY or name in skip:
            continue
        # One by one: the arguments that are skipped may have types that are imported for checking only.
        kind = parameter.annotation
        if isinstance(kind, str):
            kind = _evaluated(kind, name, function)
        yield name, Any if kind is REQUIRED else kind, parameter.default


def _evaluated(annotation: str, name: str, function: Any) -> Any:
    try:
        return type_of(annotation, function)
    except Exception as error:
        raise UsageError(
            f"the type {annotation!r} of the option {name!r} of {function.__qualname__} cannot be read ({error}): correct it."
        ) from error


def model_of(name: str, options: Mapping[str, Option]) -> type[BaseModel]:
    """A pydantic model that reads these options and no others."""
    fields: dict[str, Any] = {}
    for option in options.values():
        default = {} if option.default is REQUIRED else {"default": option.default}
        fields[option.name] = (option.kind, Field(description=option.help or None, **default))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Field name .* shadows", category=UserWarning)
        return create_model(name, __config__=CONFIG, **fields)


class MadeOnce:
    """Marks a dataclass in a model's field. What pydantic makes of it is kept for every further model that holds it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        found = _made_once(source)
        return found["schema"] if found["type"] == "nullable" else handler(source)  # else it holds itself


@cache
def _made_once(kind: Any) -> Any:
    either: Any = kind | None  # alone it could have no config
    return TypeAdapter(either, config=CONFIG).core_schema


@cache
def record_model(kind: Any) -> type[BaseModel]:
    """``model_of`` the options of a dataclass."""
    return model_of(kind.__name__, options_of(kind))


def types_of(options: Mapping[str, Option], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> type of options and of the members of those that are dataclasses."""
    types: dict[str, Any] = {}
    for option in options.values():
        types[prefix + option.name] = option.kind
        types |= members_below(prefix + option.name, option.kind)
    return types


def members_below(name: str, kind: Any) -> dict[str, Any]:
    """Dotted name -> type of what the dataclasses of a type hold."""
    found: dict[str, Any] = {}
    for record in records_in(kind):
        found |= types_of(options_of(record), f"{name}.")
    return found


def records_in(kind: Any) -> list[type[Any]]:
    """The dataclasses that a type allows."""
    return [choice for choice in _choices(kind) if dataclasses.is_dataclass(choice) and isinstance(choice, type)]


def takes_mapping(kind: Any) -> bool:
    """Whether a type allows a dictionary."""
    return any(typing.get_origin(choice) is dict for choice in _choices(kind))


def is_switch(kind: Any) -> bool:
    """Whether an option of this type needs no value on a command line."""
    return bool in _choices(kind)


def only_switch(kind: Any) -> bool:
    """Whether the values of an option of this type are true and false, or none of them: the next word is not its value."""
    return bool in _choices(kind) and set(_choices(kind)) <= {bool, NoneType}


def _choices(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else (kind,)


def from_text(text: str, kind: Any) -> Any:
    """A typed value as YAML reads it; the text itself where only that is of the option's type."""
    read = read_scalar(text)
    if isinstance(read, str):
        return str(text)  # with the spaces and quotes that YAML takes away
    if kind is None:
        return read
    return next((value for value in (read, str(text)) if fits(value, kind)), read)


def fits(value: Any, kind: Any) -> bool:
    """Whether a value, as YAML holds it, is of a type and in its range. A record's own complaints come when it is made."""
    if kind is None:
        return True
    try:
        TypeAdapter(kind, config=None if _has_config(kind) else CONFIG).validate_json(json.dumps(plain(value)))
    except (ValidationError, TypeError):
        return False
    except UsageError:
        return True
    return True


def _has_config(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel))


def plain(value: Any) -> Any:
    """A validated value as JSON and YAML hold it."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names -> nested dictionaries; later names win."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        inner, parts = nested, key.split(".")
        for part in parts[:-1]:
            before = inner.get(part)  # null, or one number for all, where a member is given
            inner[part] = dict(before) if isinstance(before, dict) else {}
            inner = inner[part]
        inner[parts[-1]] = value
    return nested


def validated(model: type[BaseModel], flat: Mapping[str, Given], types: Mapping[str, Any], *, missing: str) -> Any:
    """The model with these values.

    Args:
        model: of a whole recipe or command.
        flat: dotted option name -> its value.
        types: dotted option name -> its type.
        missing: where a missing option can be given, for the error.

    Raises:
        UsageError: a value is missing or of a wrong type.
    """
    values = {
        key: from_text(given.value, types.get(key)) if isinstance(given.value, Text) else given.value
        for key, given in flat.items()
    }
    for key, value in values.items():
        if isinstance(value, int) and abs(value) >= LARGEST:
            raise UsageError(f"{flat[key].shown} is {short(value)}: give a number that fits 64 bits.")
    try:
        return model.model_validate_json(json.dumps(plain(nest(values)), default=str))
    except ValidationError as error:
        raise UsageError(_sentence(error, model, flat, types, missing)) from error


def _help_of(model: type[BaseModel], key: str) -> str:
    """Description of an option for its help."""
    field = model.model_fields.get(key)
    return (field.description if field is not None and field.description else "a value").rstrip(".")


def _sentence(
    error: ValidationError, model: type[BaseModel], flat: Mapping[str, Given], types: Mapping[str, Any], missing: str
) -> str:
    """The first thing that is wrong."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        key = ".".join(place)
        return (
            f"{key} is missing: set it in the recipe, or give --{key} VALUE."
            if missing == "recipe"
            else f"--{key} is missing: give --{key}, {_help_of(model, key)}."
        )
    while place and ".".join(place) not in types:
        place.pop()
    key = ".".join(place)
    if told := _wrong_member(error, place, flat):
        return f"{told}, but must be {_in_mapping(types.get(key))}: change it."
    given = [name for name in flat if name == key or name.startswith(f"{key}.")]
    shown = flat[given[-1]].shown if given else key
    inside = key in flat and not isinstance(flat[key].value, Text)  # of a list or a mapping
    if inside and key.startswith(f"{shown.lstrip('-')}."):
        shown = f"{key} in {shown}"
    value: Any = {name.removeprefix(f"{key}."): flat[name].value for name in given}
    if key in flat or not given:
        value = flat[key].value if key in flat else first["input"]
    value = str(value) if isinstance(value, Text) else plain(value)
    wanted = "a finite number" if first["type"] == "finite_number" else in_words(types.get(key))
    return f"{shown} is {short(value)}, but must be {wanted}: change it."


def _wrong_member(error: ValidationError, place: Sequence[str], flat: Mapping[str, Given]) -> str:
    """Which member of a mapping is wrong, and its value; empty where the whole is."""
    key = ".".join(place)
    for one in error.errors(include_url=False):
        loc = [str(part) for part in one["loc"]]
        if loc[: len(place)] != place or len(loc) == len(place):
            continue
        if (name := f"{key}.{loc[-1]}") in flat:
            return f"{flat[name].shown} is {short(str(flat[name].value))}"
        if key in flat and isinstance(flat[key].value, Mapping) and loc[-1] in flat[key].value:
            return f"{loc[-1]} of {flat[key].shown} is {short(plain(one['input']))}"
    return ""


def _in_mapping(kind: Any) -> str:
    """What a mapping has to have, as a sentence names it."""
    mapping = next(
        (choice for choice in (kind, *typing.get_args(kind)) if typing.get_origin(choice) is dict), dict[str, Any]
    )
    return in_words(typing.get_args(mapping)[-1])


LONGEST_VALUE = 80
"""Characters of a wrong value that an error repeats."""


def short(value: Any) -> str:
    """A value as an error repeats it."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    dict: "a mapping",
    list: "a list",
    tuple: "a list",
    type(None): "null",
}


def in_words(kind: Any) -> str:
    """A type as a sentence names it: ``a number above 0 or null``."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return f"{in_words(inner[0])}{_limits(kind)}"
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is dict:
        return f"a mapping of {_several(inner[-1])}"
    if origin in (list, tuple, Sequence):
        return f"a list of {_several(inner[0])}"
    if inner:
        return " or ".join(in_words(choice) for choice in inner)
    if dataclasses.is_dataclass(kind):
        members = ", ".join(f"{option.name} ({in_words(option.kind)})" for option in options_of(kind).values())
        return f"a mapping of {members}"
    return TYPE_WORDS.get(kind, "a mapping of options")


def _several(kind: Any) -> str:
    """A type as a sentence names many of it: ``whole numbers of at least 1``."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"some of {', '.join(map(str, inner))}"
    if origin is Annotated:
        return f"{_several(inner[0])}{_limits(kind)}"
    return f"{in_words(kind).removeprefix('a ')}s"


def _limits(kind: Any) -> str:
    """The range of an annotated type as it follows its noun."""
    limits = limits_in_words(kind)
    return f" of {limits}" if limits.startswith("at ") else f" {limits}"


def help_lines(options: Mapping[str, Option], prefix: str = "") -> list[str]:
    """The options as ``--help`` lists them: name, type, default and what they do; members of dataclasses below them."""
    wrap = TextWrapper(width=HELP_WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    first = TextWrapper(
        width=HELP_WIDTH, initial_indent="  ", subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False
    )
    lines = []
    for option in options.values():
        name = f"--{prefix}{option.name}"
        members = [f"--{key}" for key in members_below(f"{prefix}{option.name}", option.kind)]
        told = [option.help.rstrip("."), f"Its options: {', '.join(members)}" if members else ""]
        shown = "required" if option.default is REQUIRED else f"default: {option.shown_default}"
        kind = "a mapping" if members else in_words(option.kind)
        if option.default is None:
            kind = kind.removesuffix(" or null")
        if "," not in kind:
            kind = kind.removeprefix("one of ")  # the one value there is
        lines += first.wrap(f"{name}  ({kind}; {shown})")
        lines += wrap.wrap(". ".join(filter(None, told)) + ".") if any(told) else []
    return lines


@contextmanager
def as_usage_errors(what: str) -> Iterator[None]:
    """Turn a constructor's complaint about its arguments into a sentence for the user."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{what}: {str(error).rstrip('.')}; change that option.") from error
