"""The recipes that come with the package: found by name from any folder, and listed with a line about each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.names import closest
from tellapart.recipe.read_yaml import read_yaml

RECIPE_ENDINGS = (".yaml", ".yml")

FOLDER = "recipes"
"""The folder of the repository. A missing ``recipes/NAME.yaml`` names the shipped recipe, so commands work anywhere."""

SCHEMAS = ("schema.json", "listener_schema.json")
"""What the first line of recipes names, for editors."""


@dataclass(frozen=True)
class Shipped:
    """A shipped recipe.

    Args:
        name: by which commands find it.
        path: of its file.
        about: what it trains, in a line: the beginning of its comment.
        method: the training method; empty for a recipe of ``train-listener``.
    """

    name: str
    path: Path
    about: str
    method: str

    @property
    def command(self) -> str:
        """The command that runs it."""
        return "train" if self.method else "train-listener"


@cache
def shipped_files() -> dict[str, Path]:
    """Name -> file of every shipped recipe: in the installed package, or next to its sources."""
    package = Path(str(resources.files("tellapart")))
    folders = (package / FOLDER, package.parents[1] / FOLDER)
    return {found.stem: found for folder in folders for found in sorted(folder.glob("*.yaml"))}


def describe(name: str) -> Shipped:
    """A shipped recipe with what its file says of it.

    Raises:
        UsageError: there is no shipped recipe of that name.
    """
    path = shipped_files().get(Path(name).stem)
    if path is None:
        raise UsageError(f"{name!r} is not a shipped recipe: {_meant(name)}")
    return Shipped(path.stem, path, about(path.read_text(encoding="utf-8")), read_yaml(path).values.get("method", ""))


def about(text: str) -> str:
    """The first clause of a recipe's comment without its brackets, which are mostly citations."""
    lines = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    comment = " ".join(line for line in lines if not line.startswith(("yaml-language-server:", "tellapart ")))
    return re.split(r"[:;]\s|(?<!al)\.(?:\s|$)", re.sub(r" \([^()]*\)", "", comment), maxsplit=1)[0]


def is_recipe(word: str) -> bool:
    """Whether a word of a command line names a recipe: a YAML file, or a shipped recipe by its name."""
    return word.endswith(RECIPE_ENDINGS) or word in shipped_files()


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path, or the name of a shipped one, also written as ``recipes/NAME.yaml``.

    Raises:
        UsageError: there is none; the sentence names the closest one.
    """
    path, shipped = Path(name), shipped_files()
    if path.is_file():
        return path
    if str(path) in shipped:
        return shipped[str(path)]
    if path.suffix not in RECIPE_ENDINGS:
        raise UsageError(f"{str(name)!r} is not a file or a shipped recipe: {_meant(str(name))}")
    if path.parent == Path(FOLDER) and path.stem in shipped:
        return shipped[path.stem]
    if path.exists():
        return path  # a folder: reading it says what is wrong
    beside = [str(other) for other in path.parent.glob("*") if other.suffix in RECIPE_ENDINGS]
    near = closest(path.name, [Path(other).name for other in beside])
    remedy = f"did you mean {path.parent / near}?" if near else _meant(path.stem)
    raise UsageError(f"the recipe {path} does not exist: {remedy}")


def _meant(name: str) -> str:
    """The remedy in an error: the closest name, if there is one."""
    near = closest(name, shipped_files())
    return f"did you mean {near}?" if near else "name a YAML file, or a recipe that tellapart recipes lists."
