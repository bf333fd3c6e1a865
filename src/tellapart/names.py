"""Names of code: ``"package.module:attribute"`` strings, imported only when chosen."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from tellapart.errors import UsageError


def resolve(target: str) -> Any:
    """The object that ``"module:attribute"`` names; imports the module."""
    module, attribute = target.split(":")
    return vars(import_module(module))[attribute]


def loaded(target: Any) -> Any:
    """The object of a target: the one that a string names, imported now, or the target itself."""
    return resolve(target) if isinstance(target, str) else target


def summary_of(value: Any, makes: str) -> str:
    """The first line of what a class or function says of itself, as packages and plugin files offer it.

    Args:
        value: the class or function.
        makes: what it makes, for the error.

    Raises:
        TypeError: it is neither.
    """
    if not (isinstance(value, type) or inspect.isroutine(value)):
        raise TypeError(f"is {type(value).__name__}, not a class or function that makes a {makes}")
    return (inspect.getdoc(value) or value.__name__).partition("\n")[0]


def require_known(word: str, known: Iterable[str], what: str) -> None:
    """Raise unless ``word`` is one of ``known``.

    Raises:
        UsageError: with the closest known name, or all of them.
    """
    names = list(known)
    if word in names:
        return
    meant = closest(word, names)
    remedy = f"did you mean {meant}?" if meant else f"choose one of {listed(names)}."
    raise UsageError(f"{word!r} is not {what}: {remedy}")


def listed(names: Sequence[str], *, most: int = 160) -> str:
    """Names with commas between them; of many, the first.

    Args:
        names: to be listed.
        most: characters, from which the rest is left out.
    """
    text = ", ".join(names)
    return text if len(text) <= most else f"{text[:most].rpartition(', ')[0]}, ... ({len(names)} in all)"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that ``word`` was probably meant to be.

    Dotted names are compared by their last part, within the same section first: a shared section does not count as similar.
    """
    names = list(known)
    section, _, leaf = word.rpartition(".")
    for candidates in ([name for name in names if name.rpartition(".")[0] == section], names):
        leaves: dict[str, str] = {}
        for name in candidates:
            leaves.setdefault(name.rpartition(".")[2], name)
        match = difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.6)
        if match:
            return leaves[match[0]]
    whole = difflib.get_close_matches(word, names, n=1, cutoff=0.8)
    return whole[0] if whole else None
