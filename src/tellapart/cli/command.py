"""The frame of the commands that take words and options: help, parsing, one dataclass of options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import TypeVar

from tellapart.cli.console import say
from tellapart.errors import UsageError
from tellapart.recipe import options as reading
from tellapart.recipe.flags import known_key, split_words
from tellapart.recipe.words import read_options

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
    options = reading.options_of(kind)
    if "--help" in argv or "-h" in argv:
        say(
            "\n".join(
                [f"usage: tellapart {usage} [--option value ...]", "", description, "", *reading.help_lines(options)]
            )
        )
        return None
    types = reading.types_of(options)
    words = split_words(argv, types, recipe=False)
    given = {
        known_key(name, types, shown=f"--{name}"): reading.Given(value, f"--{name}")
        for name, value in words.options.items()
    }
    values = read_options(given, kind.__name__, options)
    return words.positional, kind(**{field.name: getattr(values, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def refuse_unused(options: object, used: Collection[str], why: str) -> None:
    """Raise where an option was given that would do nothing.

    Args:
        options: dataclass of a command's options.
        used: those that do something here.
        why: what to say of another.

    Raises:
        UsageError: naming the first such option.
    """
    for field in fields(options):  # type: ignore[arg-type]
        if field.name not in used and getattr(options, field.name) != field.default:
            raise UsageError(f"--{field.name} does nothing {why}.")
