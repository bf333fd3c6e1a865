"""Output of the command line: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from tellapart.errors import printable, without_secrets

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 160
"""Columns of a table that goes into a file or a pipe."""

NARROWEST = 20
"""Columns that the wrapped last column of a list has at least."""


def say(text: str) -> None:
    """One result line on standard output."""
    text = printable(text)
    try:
        sys.stdout.write(text + "\n")
    except UnicodeEncodeError:  # a name in another encoding, or a terminal that has not all letters
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, errors="backslashreplace").decode(encoding) + "\n")


def say_json(value: Any, *, indent: int | None = None) -> None:
    """One JSON value on standard output, in ASCII, so that no name in it is changed on its way; numbers that are not finite,
    which JSON has not, as null."""
    say(json.dumps(_finite(value), indent=indent, allow_nan=False).replace("\x7f", "\\u007f"))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def note(text: str) -> None:
    """A remark on standard error, so that it never mixes with results; without tokens."""
    sys.stderr.write(printable(without_secrets(text)) + "\n")


def result_console() -> Console:
    """Where tables go: standard output, wide enough for a comparison where it is not a terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def table(rows: Sequence[Sequence[str]], *, width: int | None = None) -> str:
    """Rows of cells as left-aligned columns; the first row is the heading.

    Args:
        rows: of equally many cells.
        width: characters of the longest line; the last column is wrapped to fit. None wraps nothing.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    room = widths[-1] if width is None else max(width - sum(each + 2 for each in widths[:-1]), NARROWEST)
    widths[-1] = min(widths[-1], room)
    lines = []
    for row in [rows[0], ["-" * each for each in widths], *rows[1:]]:
        wrapped = [row[-1]] if width is None else wrap(row[-1], room) or [""]
        lines += [(*row[:-1], wrapped[0]), *((*[""] * (len(row) - 1), rest) for rest in wrapped[1:])]
    return "\n".join(
        "  ".join(cell.ljust(each) for cell, each in zip(row, widths, strict=True)).rstrip() for row in lines
    )
