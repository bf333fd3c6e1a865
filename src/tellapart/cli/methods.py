"""``tellapart methods``: the table of training methods, without importing any of them; with a name, all about one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, ClassVar

from tellapart.cli.command import options_of
from tellapart.cli.console import say, say_json, table
from tellapart.names import require_known
from tellapart.objectives import METHODS
from tellapart.recipe.options import HELP_WIDTH, help_lines


@dataclass(frozen=True, kw_only=True)
class MethodsOptions:
    """Options of ``tellapart methods``.

    Args:
        json: print JSON instead of a table.
    """

    examples: ClassVar[tuple[str, ...]] = ("tellapart methods", "tellapart methods dico", "tellapart methods --json")
    json: bool = False


def run(argv: Sequence[str]) -> int:
    """Print the table, or details of the named methods."""
    chosen = options_of(
        argv,
        MethodsOptions,
        usage="methods | methods NAME",
        description="List the training methods, what each needs, and where it comes from; with a name, also its options and the "
        "shipped recipes that use it.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    for word in words:
        require_known(word, METHODS, "a method")
    if options.json:
        say_json([_as_json(name) for name in words or METHODS], indent=2)
    elif words:
        say("\n\n".join(map(_described, words)))
    else:
        say(_listed())
    return 0


def _listed() -> str:
    rows = [
        (name, _yes(method.needs_references), _yes(method.needs_reward), f"{method.summary}. {method.paper}")
        for name, method in METHODS.items()
    ]
    return table([("method", "references", "reward", "what it does, and the paper"), *rows], width=HELP_WIDTH)


def _yes(needed: bool) -> str:
    return "needed" if needed else "-"


def _as_json(name: str) -> dict[str, Any]:
    method = METHODS[name]
    return {
        "name": name,
        "summary": method.summary,
        "paper": method.paper,
        "needs_references": method.needs_references,
        "needs": list(method.needs),
        "rewards": list(method.rewards),
        "fixed": dict(method.fixed),
    }


def _described(name: str) -> str:
    """The row of the table, the options with their defaults, and recipes to begin from."""
    from tellapart.recipe.schema import OBJECTIVE, Catalogue, captioner_schema
    from tellapart.recipe.shipped import describe, shipped_files

    method = METHODS[name]
    recipes = [found for found in map(describe, shipped_files()) if found.method == name]
    facts = {
        "paper": method.paper,
        "references": "needed for every training image" if method.needs_references else "as the reward needs them",
        "needs": ", ".join(method.needs) or "nothing else",
        "reward": f"{', '.join(method.rewards)} in its paper" if method.rewards else "",
        "fixed": ", ".join(f"{option} {value}" for option, value in method.fixed.items()),
        "recipes": ", ".join(recipe.name for recipe in recipes),
    }
    lines = [*wrap(f"{name}: {method.summary}", HELP_WIDTH)]
    for heading, text in facts.items():
        lines += wrap(f"  {heading + ':':<12}{text}", HELP_WIDTH, subsequent_indent=" " * 14) if text else []
    options = captioner_schema(name, Catalogue.load()).sections[OBJECTIVE].options
    return "\n".join([*lines, "", "options:", *help_lines(options, f"{OBJECTIVE}.")]) if options else "\n".join(lines)
