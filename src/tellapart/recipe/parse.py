"""Options from signatures: one parser for every command, whose errors are one sentence each.

jsonargparse turns classes into options (names, types, defaults, documentation); the reading of the command line
itself is ours, so that a recipe and the flags that override it take the same way and flags win wherever they stand.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import jsonargparse

from tellapart.errors import UsageError
from tellapart.names import closest

logger = logging.getLogger(__name__)

RENAMED = {
    "beam_size": "num_beams",
    "batch_size_per_gpu": "per_device_train_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "lr": "learning_rate",
    "max_completion_length": "max_new_tokens",
    "max_length": "max_new_tokens",
    "train_sample_n": "num_generations",
    "warmup_ratio": "warmup_steps",
    "lora_r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
}
"""Names of other tools -> ours, compared by an option's last part; accepted with a note."""

GONE = {
    "logging_dir": "logs are written below --output_dir",
    "language_eval": "the evaluation always computes the language metrics",
    "self_critical_after": "train with method xe first, then give its run as --captioner.model_name_or_path",
    "sc_sample_method": "the objective's own options say how captions are drawn",
}
"""Names of other tools that have no counterpart -> what to do instead."""

RECIPE_ENDINGS = (".yaml", ".yml")

SWITCH_WORDS = {"true", "false", "yes", "no"}


class Complaint(Exception):
    """What jsonargparse has to say against its input, in its own words."""


class Parser(jsonargparse.ArgumentParser):
    """A jsonargparse parser which raises its complaints instead of printing them and leaving."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the complaint."""
        raise Complaint(message) from ex


def parse(parser: Parser, flat: Mapping[str, Any], files: Mapping[str, str] | None = None) -> Any:
    """Check and convert options.

    Args:
        parser: knows names and types.
        flat: dotted option name -> its value, or its text.
        files: dotted option name -> the file it stands in, where it is in one.

    Raises:
        UsageError: one is missing or of a wrong type.
    """
    try:
        return parser.parse_object(nest(flat))
    except Complaint as complaint:
        raise UsageError(_readable(parser, str(complaint), flat, files or {})) from complaint


def _readable(parser: Parser, message: str, flat: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """The complaint as one sentence."""
    plain = " ".join(message.split())
    missing = re.match(r"the following arguments are required: ([^ ,]+)", plain)
    if missing:
        return f"{missing[1]} is missing: set it in the recipe, or give --{missing[1]} VALUE."
    wrong = re.match(r'(?:Parser|Configuration) key "([^"]+)":', plain)
    types = option_types(parser)
    given = [key for key in flat if wrong and (key == wrong[1] or key.startswith(f"{wrong[1]}."))]
    if wrong is None or not given:
        return f"{plain.rstrip('.')}: see --help for the options."
    given = [key for key in given if key not in files] or given
    key = given[0] if len(given) == 1 else wrong[1]
    shown = f"{key} in {files[given[0]]}" if given[0] in files else f"--{key}"
    value = flat[key] if key in flat else {inner.removeprefix(f"{key}."): flat[inner] for inner in given}
    return f"{shown} is {value!r}, but must be {in_words(types.get(key, types[wrong[1]]))}: change it."


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
    """A type as a sentence names it: ``a number or null``."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (list, dict, tuple):
        return f"{TYPE_WORDS[origin]} of {in_words(inner[-1] if origin is dict else inner[0]).removeprefix('a ')}s"
    if inner:
        return " or ".join(in_words(choice) for choice in inner)
    if dataclasses.is_dataclass(kind):
        return "a mapping of " + ", ".join(f"{name} ({in_words(member)})" for name, member in _members(kind))
    return TYPE_WORDS.get(kind, str(kind))


def option_types(parser: Parser) -> dict[str, Any]:
    """Dotted option name -> its type, members of optional dataclasses included."""
    types: dict[str, Any] = {}
    for action in parser._actions:
        kind = vars(action).get("_typehint")
        if kind is not None and not action.dest.endswith(".help"):
            types[action.dest] = kind
            types.update(_below(action.dest, kind))
    return types


def _below(name: str, kind: Any) -> Iterator[tuple[str, Any]]:
    """Dotted names and types of what the dataclasses of a type hold, and what these hold."""
    for inner, member in _members(kind):
        yield f"{name}.{inner}", member
        yield from _below(f"{name}.{inner}", member)


def _members(kind: Any) -> Iterator[tuple[str, Any]]:
    """The fields of the dataclasses that a type allows."""
    for choice in (kind, *typing.get_args(kind)):
        if dataclasses.is_dataclass(choice) and isinstance(choice, type):
            hints = typing.get_type_hints(choice)
            yield from ((field.name, hints[field.name]) for field in dataclasses.fields(choice))


def _takes_mapping(kind: Any) -> bool:
    """Whether a type allows a dictionary."""
    return any(typing.get_origin(choice) is dict for choice in (kind, *typing.get_args(kind)))


@dataclass(frozen=True)
class Arguments:
    """A command line, taken apart.

    Args:
        positional: words that belong to no option.
        options: dotted option name -> its text.
    """

    positional: list[str]
    options: dict[str, str]


def split_arguments(argv: Sequence[str], types: Mapping[str, Any]) -> Arguments:
    """Take a command line apart: ``--name value``, ``--name=value`` and switches, in any order; ``-`` counts as ``_``.

    Raises:
        UsageError: an option is unknown or lacks its value.
    """
    positional: list[str] = []
    options: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            positional += words
            break
        if not word.startswith("--"):
            positional.append(word)
            continue
        name, given, value = word[2:].partition("=")
        key = known_key(name.replace("-", "_"), types, shown="--")
        if not given:
            value = _value_of(key, words, kind=types.get(key))
        options[key] = value
    return Arguments(positional, options)


def _value_of(key: str, words: list[str], *, kind: Any) -> str:
    """Take an option's value off ``words``; a switch needs none."""
    follows = bool(words) and not words[0].startswith("--")
    if kind is bool and not (follows and words[0].lower() in SWITCH_WORDS):
        return "true"
    if bool in typing.get_args(kind) and not (follows and not words[0].endswith(RECIPE_ENDINGS)):
        return "true"
    if not follows:
        raise UsageError(f"--{key} has no value: write --{key} VALUE.")
    return words.pop(0)


def known_key(name: str, types: Mapping[str, Any], *, shown: str = "", where: str = "") -> str:
    """``name`` as the options call it: itself, or the new name of an old one (said in a note).

    Args:
        name: the dotted name given.
        types: the known options.
        shown: what stands before a name in messages (``--`` on the command line).
        where: the file it stands in, for messages.

    Raises:
        UsageError: nothing of that name exists; the closest one is named.
    """
    if name in types:
        return name
    section, _, leaf = name.rpartition(".")
    if section in types and _takes_mapping(types[section]):
        return name
    place = f" in {where}" if where else ""
    if leaf in GONE:
        raise UsageError(f"{shown}{name}{place} has no counterpart here: {GONE[leaf]}.")
    if leaf in RENAMED:
        renamed = f"{section}.{RENAMED[leaf]}" if section else RENAMED[leaf]
        same_leaf = [key for key in types if key.rsplit(".", 1)[-1] == RENAMED[leaf]]
        found = renamed if renamed in types else same_leaf[0] if len(same_leaf) == 1 else None
        if found:
            logger.warning("note: %s%s%s is called %s%s here.", shown, name, place, shown, found)
            return found
    meant = closest(name, [*types, *GONE])
    remedy = f"did you mean {shown}{meant}?" if meant else "see --help for the options."
    raise UsageError(f"{shown}{name}{place} is not an option: {remedy}")


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names -> nested dictionaries."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        inner, parts = nested, key.split(".")
        for part in parts[:-1]:
            before = inner.get(part)  # null, where a member is given for a section that was left out
            inner[part] = dict(before) if isinstance(before, dict) else {}
            inner = inner[part]
        inner[parts[-1]] = value
    return nested


def add_options(parser: Parser, kind: Any, section: str | None = None, *, skip: Sequence[str] = ()) -> None:
    """Add the arguments of a class as options; with ``skip`` it is not instantiated, since others give those."""
    parser.add_class_arguments(kind, section, skip=set(skip), instantiate=section is None or not skip)


def help_of(parser: Parser) -> str:
    """The help text: without what is no option of ours (a section's config file), and with members of optional sections."""
    for action in parser._actions:
        kind = vars(action).get("_typehint")
        if (kind is None and action.dest != "help") or action.dest.endswith(".help"):
            action.help = argparse.SUPPRESS
        elif members := [f"--{action.dest}.{name}" for name, _ in _members(kind)]:
            action.help = f"{action.help} Its options: {', '.join(members)}"
    return parser.format_help().rstrip()
