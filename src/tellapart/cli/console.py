"""What the command line says: results on standard output, everything else on standard error."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence


def say(text: str) -> None:
    """One result line on standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A remark on standard error, so that it never mixes with results."""
    sys.stderr.write(text + "\n")


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that ``word`` was probably meant to be; dotted names may also match by their last part."""
    names = list(known)
    whole = difflib.get_close_matches(word, names, n=1, cutoff=0.7)
    if whole:
        return whole[0]
    leaves: dict[str, str] = {}
    for name in names:
        leaves.setdefault(name.rsplit(".", 1)[-1], name)
    match = difflib.get_close_matches(word.rsplit(".", 1)[-1], leaves, n=1, cutoff=0.6)
    return leaves[match[0]] if match else None


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as left-aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    ruled = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in ruled
    )
