"""The frame of the commands that take words and options: help, parsing, one dataclass of options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from tellapart.cli.console import say
from tellapart.errors import UsageError
from tellapart.recipe.parse import Parser, add_options, help_of, option_types, parse, split_arguments

T = TypeVar("T")


def options_of(argv: Sequence[str], kind: type[T], *, usage: str, description: str) -> tuple[list[str], T] | None:
    """The words and options of a command line, or None after its help was printed.

    Args:
        argv: what follows the command.
        kind: dataclass of the command's options.
        usage: the command and its words, for the help.
        description: what the command does.

    Raises:
        UsageError: an option is unknown, missing or of a wrong type.
    """
    parser = Parser(usage=f"tellapart {usage} [--option value ...]", description=description)
    add_options(parser, kind)
    if "--help" in argv or "-h" in argv:
        say(help_of(parser))
        return None
    given = split_arguments(argv, option_types(parser))
    parsed: Any = parse(parser, given.options)
    return given.positional, kind(**{field.name: parsed[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def refuse_unused(options: Any, used: Collection[str], why: str) -> None:
    """Raise where an option was given that would do nothing.

    Args:
        options: dataclass of a command's options.
        used: those that do something here.
        why: what to say of another.

    Raises:
        UsageError: naming the first such option.
    """
    for field in fields(options):
        if field.name not in used and getattr(options, field.name) != field.default:
            raise UsageError(f"--{field.name} does nothing {why}.")
