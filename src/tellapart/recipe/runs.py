"""The record of a run's settings, for the commands that read runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tellapart.files import read_json
from tellapart.recipe.sections import DataSection, EvaluationSection, ListenerSection, OwnListenerSection


@dataclass(frozen=True)
class Made:
    """The sections of a run's recipe that say what it is measured on."""

    data: DataSection
    listener: ListenerSection
    evaluation: EvaluationSection
    own_listener: OwnListenerSection | None = None
    itm: bool = False
    """Whether its reward asks a matcher."""


def made(run: Path) -> Made | None:
    """The run's own account, or None if it has none (a model folder, a file)."""
    try:
        return made_by(read_json(run / "run.json")["recipe"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def made_by(recipe: dict[str, Any]) -> Made:
    """The same of a resolved recipe.

    Raises:
        KeyError: it lacks a section.
    """
    data, listener = _section(DataSection, recipe["data"]), _section(ListenerSection, recipe["listener"])
    evaluation, own = _section(EvaluationSection, recipe["evaluation"]), recipe.get("own_listener")
    itm = bool((recipe.get("matcher") or {}).get("model"))
    return Made(data, listener, evaluation, None if own is None else _section(OwnListenerSection, own), itm)


def _section(kind: type[Any], values: dict[str, Any]) -> Any:
    """A section as a recipe has it; unknown keys of other versions are skipped."""
    known = {field.name for field in fields(kind)}
    values = {key: value for key, value in values.items() if key in known}
    for key in ("images", "features"):
        if values.get(key) is not None:
            values[key] = Path(values[key])
    return kind(**values)
