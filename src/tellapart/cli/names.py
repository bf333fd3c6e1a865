"""Names that stand for code: ``"package.module:attribute"`` strings, imported only when chosen."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from tellapart.cli.console import closest
from tellapart.errors import UsageError


def resolve(target: str) -> Any:
    """The object that ``"module:attribute"`` names; imports the module."""
    module, attribute = target.split(":")
    return vars(import_module(module))[attribute]


def require_known(word: str, known: Iterable[str], what: str) -> None:
    """Raise unless ``word`` is one of ``known``.

    Raises:
        UsageError: with the closest known name, or all of them.
    """
    names = list(known)
    if word in names:
        return
    meant = closest(word, names)
    remedy = f"did you mean {meant}?" if meant else f"choose one of {', '.join(names)}."
    raise UsageError(f"{word!r} is not {what}: {remedy}")
