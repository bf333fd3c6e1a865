"""``tellapart recipes``: list the recipes that come with the package, print one, or copy them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tellapart.cli.command import options_of
from tellapart.cli.console import note, say, say_json, table
from tellapart.errors import UsageError
from tellapart.recipe.options import HELP_WIDTH

if TYPE_CHECKING:
    from tellapart.recipe.shipped import Shipped


@dataclass(frozen=True, kw_only=True)
class RecipesOptions:
    """Options of ``tellapart recipes``.

    Args:
        copy: folder to copy the named recipes to, or all of them where none is named.
        json: list as JSON, with the path and the command of each.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart recipes",
        "tellapart recipes world_ved_dico",
        "tellapart recipes world_ved_dico --copy my_recipes",
    )
    copy: Path | None = None
    json: bool = False


def run(argv: Sequence[str]) -> int:
    """List, print or copy."""
    chosen = options_of(
        argv,
        RecipesOptions,
        usage="recipes | recipes NAME",
        description="List the shipped recipes, or print one. tellapart train NAME runs one from any folder.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if options.json and options.copy is not None:
        raise UsageError("--json lists recipes, and --copy copies them: leave one of the two out.")
    from tellapart.recipe.shipped import describe, shipped_files

    named = [describe(word) for word in words or shipped_files()]
    if options.copy is not None:
        copy(named, options.copy)
    elif options.json:
        say_json([_as_json(recipe) for recipe in named], indent=2)
    elif words:
        say("\n".join(recipe.path.read_text(encoding="utf-8").rstrip() for recipe in named))
    else:
        say(table([("recipe", "what it trains"), *((recipe.name, recipe.about) for recipe in named)], width=HELP_WIDTH))
    return 0


def _as_json(recipe: Shipped) -> dict[str, str | None]:
    return {
        "name": recipe.name,
        "about": recipe.about,
        "command": recipe.command,
        "method": recipe.method or None,
        "path": str(recipe.path),
    }


def copy(named: Sequence[Shipped], folder: Path) -> None:
    """Copy recipes, and the schemas that editors check them by.

    Raises:
        UsageError: a recipe of that name is there already.
    """
    from tellapart.recipe.shipped import SCHEMAS

    taken = next((folder / recipe.path.name for recipe in named if (folder / recipe.path.name).exists()), None)
    if taken is not None:
        raise UsageError(f"{taken} exists: name another folder for --copy, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    for source in [*(recipe.path for recipe in named), *(named[0].path.with_name(name) for name in SCHEMAS)]:
        shutil.copyfile(source, folder / source.name)
    for recipe in named:
        say(str(folder / recipe.path.name))
    note(f"copied; run one with: tellapart {named[0].command} {folder / named[0].path.name}")
