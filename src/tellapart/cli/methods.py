"""``tellapart methods``: the table of training methods, without importing any of them."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.cli.console import say, table
from tellapart.errors import UsageError
from tellapart.objectives import METHODS

USAGE = "usage: tellapart methods\n\nList the training methods, what each needs, and where it comes from."


def run(argv: Sequence[str]) -> int:
    """Print the table."""
    if "--help" in argv or "-h" in argv:
        say(USAGE)
        return 0
    if argv:
        raise UsageError(f"{argv[0]!r} is one word too many: tellapart methods takes none.")
    heading = ("method", "references", "reward", "what it does", "paper")
    rows = [
        (name, _yes(method.needs_references), _yes(method.needs_reward), method.summary, method.paper)
        for name, method in METHODS.items()
    ]
    say(table([heading, *rows]))
    return 0


def _yes(needed: bool) -> str:
    return "needed" if needed else "-"
