"""Options from signatures: one parser for every command, whose errors are one sentence each.

jsonargparse turns classes into options (names, types, defaults, documentation); the reading of the command line itself is
ours, so that a recipe and the flags that override it take the same way and flags win wherever they stand.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jsonargparse

from tellapart.cli.console import closest, note
from tellapart.errors import UsageError

RENAMED = {
    "beam_size": "num_beams",
    "batch_size_per_gpu": "per_device_train_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "evaluation_strategy": "eval_strategy",
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

SWITCH_WORDS = {"true", "false", "yes", "no"}


class Complaint(Exception):
    """What jsonargparse has to say against its input, in its own words."""


class Parser(jsonargparse.ArgumentParser):
    """jsonargparse's parser, which raises its complaints instead of printing them and leaving."""

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
        raise UsageError(_readable(str(complaint), files or {})) from complaint


def _readable(message: str, files: Mapping[str, str]) -> str:
    """jsonargparse's complaint as one sentence."""
    flat = " ".join(message.split())
    wrong = re.match(r'(?:Parser|Configuration) key "(?P<key>[^"]+)": (?P<why>.*)', flat)
    if wrong is None:
        missing = re.match(r"the following arguments are required: (?P<keys>.*)", flat)
        if missing:
            return f"{missing['keys']} is missing: set it in the recipe or as --{missing['keys'].split(', ')[0]} VALUE."
        return f"{flat.rstrip('.')}: see --help for the options."
    key = wrong["key"]
    shown = f"{key} in {files[key]}" if key in files else f"--{key}"
    expected = re.match(r"(?:.*? )?Expected an? (?P<type>.*?)\. Got value: (?P<value>.*)", wrong["why"])
    if expected is None:
        return f"{shown} cannot be used ({wrong['why'].rstrip('.')}): see --help for what it takes."
    kind = re.sub(r"<class '([\w.]+)'>|typing\.", lambda found: found[1] or "", expected["type"])
    return f"{shown} is {expected['value']!r}, but must be of type {kind}: change it (--help explains it)."


def option_types(parser: Parser) -> dict[str, Any]:
    """Dotted option name -> its type, members of optional dataclasses included."""
    types: dict[str, Any] = {}
    for action in parser._actions:
        kind = vars(action).get("_typehint")
        if kind is not None and action.option_strings:
            types[action.dest] = kind
            types.update((f"{action.dest}.{name}", member) for name, member in _members(kind))
    return types


def _members(kind: Any) -> Iterator[tuple[str, Any]]:
    """The fields of the dataclasses that a type allows."""
    for choice in (kind, *typing.get_args(kind)):
        if dataclasses.is_dataclass(choice) and isinstance(choice, type):
            hints = typing.get_type_hints(choice)
            yield from ((field.name, hints[field.name]) for field in dataclasses.fields(choice))


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
            value = _value_of(key, words, switch=types[key] is bool)
        options[key] = value
    return Arguments(positional, options)


def _value_of(key: str, words: list[str], *, switch: bool) -> str:
    """Take an option's value off ``words``; a switch needs none."""
    if switch and not (words and words[0].lower() in SWITCH_WORDS):
        return "true"
    if not words or words[0].startswith("--"):
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
    place = f" in {where}" if where else ""
    if leaf in GONE:
        raise UsageError(f"{shown}{name}{place} has no counterpart here: {GONE[leaf]}.")
    if leaf in RENAMED:
        renamed = f"{section}.{RENAMED[leaf]}" if section else RENAMED[leaf]
        same_leaf = [key for key in types if key.rsplit(".", 1)[-1] == RENAMED[leaf]]
        found = renamed if renamed in types else same_leaf[0] if len(same_leaf) == 1 else None
        if found:
            note(f"note: {shown}{name}{place} is called {shown}{found} here.")
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
            if not isinstance(inner.get(part), dict):  # a member given for a section that was null
                inner[part] = {}
            inner = inner[part]
        inner[parts[-1]] = value
    return nested


def add_options(parser: Parser, kind: Any, section: str | None = None, *, skip: Sequence[str] = ()) -> None:
    """Add the arguments of a class as options, without the file options that jsonargparse adds to sections."""
    parser.add_class_arguments(kind, section, skip=set(skip), instantiate=section is None or not skip)
    hide_extras(parser)


def hide_extras(parser: Parser) -> None:
    """Leave out of ``--help`` what is not an option of ours (a section's config file, a type's own help)."""
    for action in parser._actions:
        if "_typehint" not in vars(action) and action.dest != "help":
            action.help = argparse.SUPPRESS


def wants_help(argv: Sequence[str]) -> bool:
    """Whether the command line asks for help."""
    return "--help" in argv or "-h" in argv
