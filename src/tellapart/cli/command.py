"""The frame of the commands that take words and options: help, parsing, one dataclass of options."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import wrap
from typing import TypeVar

from tellapart.cli.console import say
from tellapart.data.formats.patterns import expand, is_pattern
from tellapart.errors import UsageError
from tellapart.launch import processes
from tellapart.names import require_known
from tellapart.recipe import options as reading
from tellapart.recipe.flags import known_key, split_words
from tellapart.recipe.words import read_options

T = TypeVar("T")


def options_of(argv: Sequence[str], kind: type[T], *, usage: str, description: str) -> tuple[list[str], T] | None:
    """The words and options of a command line, or None after its help was printed.

    Args:
        argv: what follows the command.
        kind: dataclass of the command's options. Its ``examples`` (command lines) and ``groups`` (heading -> names of options)
            are shown in the help; options of no group come last.
        usage: the command and its words, for the help.
        description: what the command does.

    Raises:
        UsageError: an option is unknown, missing or of a wrong type.
    """
    options = reading.options_of(kind)
    if "--help" in argv or "-h" in argv:
        lines = help_head(f"{usage} [--option value ...]", description, getattr(kind, "examples", ()))
        say("\n".join([*lines, *grouped_lines(options, getattr(kind, "groups", {}))]))
        return None
    types = reading.types_of(options)
    words = split_words(argv, types, recipe=False)
    given = {
        known_key(name, types, shown=f"--{name}"): reading.Given(value, f"--{name}")
        for name, value in words.options.items()
    }
    values = read_options(given, kind)
    return words.positional, kind(**{field.name: getattr(values, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def require_another_file(words: Sequence[str], output: str | Path, *, option: str = "--output") -> None:
    """Raise where a command's output would replace a file that it reads.

    Args:
        words: what the command reads: files, or patterns of them; others are passed over.
        output: the file that it writes.
        option: that names the file or its folder.

    Raises:
        UsageError: naming the output.
    """
    if not os.path.isfile(output):
        return
    named = (name for word in words for name in (expand(word) if is_pattern(word) else [word]))
    if any(os.path.exists(name) and os.path.samefile(name, output) for name in named):
        other = "folder" if option == "--output_dir" else "file"
        raise UsageError(f"{option}: {output} is the input, which would be lost: name another {other}.")


def require_html(output: Path, *, option: str = "--output") -> None:
    """Raise where a page would have another ending than its kind."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{option} is {str(output)!r}, but the page is HTML: give a name that ends in .html.")


def require_own(output: Path, load: Callable[[Path], object], what: str, *, option: str = "--output") -> None:
    """Raise where a command's output would replace a file that the command cannot have written.

    Args:
        output: the file that it writes.
        load: reads such files, and raises ``UsageError`` where it cannot.
        what: they hold.
        option: that names the file, or its folder.

    Raises:
        UsageError: naming the output.
    """
    if not output.is_file() or output.stat().st_size == 0:
        return
    try:
        load(output)
    except UsageError as error:
        raise UsageError(
            f"{option}: {output} exists and holds no {what}: name another one, or delete this file."
        ) from error


Actions = Mapping[str, tuple[str, Callable[[Sequence[str]], int]]]
"""Action of a command -> (one line, what takes the remaining words and returns the exit code)."""


def run_action(command: str, actions: Actions, argv: Sequence[str]) -> int:
    """Hand the words to the action of a command that the first of them names, or print which actions there are.

    Raises:
        UsageError: there is no such action.
    """
    if argv[:1] and argv[0] in ("-h", "--help", "help"):
        width = max(map(len, actions))
        lines = [f"  {name:<{width}}  {line}" for name, (line, _) in actions.items()]
        usage = f"usage: tellapart {command} ACTION ..."
        say("\n".join([usage, "", "actions:", *lines, "", f"tellapart {command} ACTION --help explains an action."]))
        return 0
    if not argv:
        raise UsageError(f"{command} needs to know what to do: write tellapart {command} {' or '.join(actions)}.")
    require_known(argv[0], actions, f"an action of tellapart {command}")
    return actions[argv[0]][1](argv[1:])


def help_head(usage: str, description: str, examples: Sequence[str] = ()) -> list[str]:
    """The lines of a help before its options.

    Args:
        usage: the command and its words.
        description: what the command does.
        examples: command lines.
    """
    shown = ["examples:", *(f"  {example}" for example in examples), ""] if examples else []
    called = wrap(f"usage: tellapart {usage}", reading.HELP_WIDTH, subsequent_indent=" " * 7)
    return [*called, "", *wrap(description, reading.HELP_WIDTH), "", *shown]


def grouped_lines(options: Mapping[str, reading.Option], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The options under the headings of their groups, those of no group last."""
    named = {name for names in groups.values() for name in names}
    rest = [name for name in options if name not in named]
    parts = {**groups, "other options" if groups else "options": rest}
    lines: list[str] = []
    for heading, names in parts.items():
        found = {name: options[name] for name in names if name in options}
        lines += [f"{heading}:", *reading.help_lines(found), ""] if found else []
    return lines[:-1]


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


def require_alone(command: str, instead: str) -> None:
    """Raise in one of several processes that a launcher such as torchrun has started, each of which would do everything.

    Args:
        command: its name.
        instead: what to do.

    Raises:
        UsageError: naming the command.
    """
    if processes() > 1 and "RANK" in os.environ:
        raise UsageError(f"{command} does not share its work between processes of a launch: {instead}.")
