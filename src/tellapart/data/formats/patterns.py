"""Paths that match several files: ``{00..02}``, ``{a,b}``, and the wildcards of a shell that were quoted."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from tellapart.errors import UsageError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def is_pattern(given: str) -> bool:
    """Whether a path that does not exist matches several.

    Example:
        >>> is_pattern("shards/{00..03}.tar"), is_pattern("photos/*.jpg"), is_pattern("photos/")
        (True, True, False)
    """
    return _BRACES.search(given) is not None or glob.has_magic(given)


def expand(pattern: str) -> Iterator[str]:
    """The paths that a pattern matches: ``{00..02}`` counts, ``{a,b}`` lists, wildcards match what is there.

    ``**`` matches any number of folders. What matches wildcards comes sorted, without hidden files. A path that exists
    matches itself.

    Raises:
        UsageError: nothing matches.
    """
    if os.path.exists(pattern):
        yield pattern
        return
    for name in braced(pattern):
        if not glob.has_magic(name):
            yield name
            continue
        found = sorted(glob.glob(name, recursive=True))
        if not found:
            raise UsageError(f"no file matches {name}: check the path, or put it in quotes as it is.")
        yield from found


def braced(pattern: str) -> Iterator[str]:
    """Expand the braces of a pattern; wildcards stay."""
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    counted = _RANGE.fullmatch(match[1])
    if counted:
        first, last = int(counted[1]), int(counted[2])
        step = 1 if first <= last else -1  # a shell, too, counts down
        words = [f"{number:0{len(counted[1])}d}" for number in range(first, last + step, step)]
    else:
        words = match[1].split(",")
    for word in words:
        yield from braced(pattern[: match.start()] + word + pattern[match.end() :])
