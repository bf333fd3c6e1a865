"""Captions in files with one caption per line."""

from __future__ import annotations

from tellapart.errors import UsageError

BREAK = "\u2028"
"""LINE SEPARATOR, which replaces a line break inside a caption."""


def to_line(caption: str, where: str, format: str) -> str:
    """A caption as one line, without the line's end.

    Raises:
        UsageError: reading the line would give another caption.
    """
    problem = None
    if BREAK in caption:
        problem = "holds a LINE SEPARATOR (U+2028)"
    elif caption.endswith("\r"):
        problem = "ends in a carriage return"
    elif caption.startswith("\ufeff"):
        problem = "begins with a byte order mark (U+FEFF)"
    if problem:
        raise UsageError(
            f"a caption of {where} {problem}, which {format} would lose ({caption[:60]!r}): "
            "convert to folder, coco, karpathy, csv, webdataset or datasets, which keep every caption."
        )
    return caption.replace("\n", BREAK)


def from_line(line: str) -> str:
    """The caption of a line; a carriage return before the line break is not part of it."""
    return line.removesuffix("\r").replace(BREAK, "\n")


def lines_of(text: str) -> list[str]:
    """The lines of a text, the last of which may lack its end."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines
