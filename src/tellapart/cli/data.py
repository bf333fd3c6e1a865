"""``tellapart data``: look through data, or convert it."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.cli.console import say
from tellapart.errors import UsageError
from tellapart.names import require_known, resolve

ACTIONS = {
    "check": ("read every image and caption, and tell what would spoil a training", "tellapart.cli.data_check:run"),
    "convert": ("write data in another format", "tellapart.cli.data_convert:run"),
}
"""What can be done with data -> (one line, ``module:function`` that takes the remaining words)."""


def run(argv: Sequence[str]) -> int:
    """Do what the first word says with the rest.

    Raises:
        UsageError: it says nothing known.
    """
    if argv and argv[0] in ("-h", "--help", "help"):
        say(usage())
        return 0
    if not argv:
        raise UsageError(f"data needs to know what to do: write tellapart data {' or '.join(ACTIONS)}.")
    require_known(argv[0], ACTIONS, "an action of tellapart data")
    return int(resolve(ACTIONS[argv[0]][1])(argv[1:]))


def usage() -> str:
    """The overview that ``tellapart data --help`` prints."""
    width = max(map(len, ACTIONS))
    lines = [f"  {name:<{width}}  {line}" for name, (line, _) in ACTIONS.items()]
    return "\n".join(["usage: tellapart data ACTION ...", "", "actions:", *lines, "", "Each explains itself: --help."])
