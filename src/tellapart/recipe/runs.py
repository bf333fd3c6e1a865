"""The record of a run's settings, for the commands that read runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tellapart.errors import UsageError, quoted, reason_of
from tellapart.files import read_object
from tellapart.recipe.sections import DataSection, EvaluationSection, ListenerSection, OwnListenerSection
from tellapart.run_files import RECORD_FILE


@dataclass(frozen=True)
class Made:
    """The sections of a run's recipe that say what it is measured on."""

    data: DataSection
    listener: ListenerSection
    evaluation: EvaluationSection
    own_listener: OwnListenerSection | None = None
    itm: bool = False
    """Whether its reward asks a matcher."""


_SECTIONS = ("captioner", "data", "listener", "evaluation", "own_listener", "matcher")
"""Parts of a recipe that commands read of a run."""


def run_of(folder: Path) -> Path:
    """The run that a checkpoint, such as ``runs/x/checkpoint-240`` or ``runs/x/best``, is of; any other folder itself."""
    place = folder.expanduser()
    checkpoint = place.name == "best" or re.fullmatch(r"checkpoint-\d+", place.name) is not None
    return place.parent if checkpoint and not (place / RECORD_FILE).is_file() else folder


def recorded_recipe(run: Path) -> dict[str, Any]:
    """The recipe that a run, or the run of a checkpoint, was trained by, as its ``run.json`` has it; empty where there is none.

    Raises:
        UsageError: the file was changed since.
    """
    run = run_of(run)
    recipe = read_object(run / RECORD_FILE).get("recipe") or {}
    parts = [recipe.get(name) for name in _SECTIONS if name in recipe] if isinstance(recipe, dict) else [recipe]
    if not all(isinstance(part, dict) or part is None for part in parts):
        raise _changed(run, "a part of its recipe is not a mapping")
    return recipe


def start_captioner(run: Path) -> str | None:
    """What a run's recipe names as its captioner; none where it names none.

    Raises:
        UsageError: ``run.json`` was changed since the run.
    """
    name = (recorded_recipe(run).get("captioner") or {}).get("model_name_or_path")
    if name is not None and not isinstance(name, str):
        raise _changed(run, f"captioner.model_name_or_path is {quoted(name)}")
    return name


def made(run: Path) -> Made | None:
    """The run's own account, or None if it has none (a model folder, a file).

    Raises:
        UsageError: ``run.json`` was changed since the run.
    """
    recipe = recorded_recipe(run)
    if not recipe:
        return None
    try:
        return made_by(recipe)
    except KeyError:
        return None
    except ValueError as error:
        raise _changed(run, reason_of(error)) from error


def _changed(run: Path, reason: str) -> UsageError:
    return UsageError(
        f"{run / RECORD_FILE} is not as a training wrote it ({reason}): restore it, or name the captioner's folder."
    )


def made_by(recipe: Mapping[str, Any]) -> Made:
    """The same of a resolved recipe.

    Raises:
        KeyError: it lacks a section.
        ValueError: a value is of a wrong type.
    """
    data, listener = _section(DataSection, recipe["data"]), _section(ListenerSection, recipe["listener"])
    evaluation, own = _section(EvaluationSection, recipe["evaluation"]), recipe.get("own_listener")
    itm = bool((recipe.get("matcher") or {}).get("model"))
    return Made(data, listener, evaluation, None if own is None else _section(OwnListenerSection, own), itm)


def _section(kind: type[Any], values: Mapping[str, Any] | None) -> Any:
    """A section as a recipe has it; unknown keys of other versions are skipped."""
    known = {field.name for field in fields(kind)}
    if values is None:
        raise ValueError(f"the section of {kind.__name__.removesuffix('Section')} is null")
    return TypeAdapter(kind).validate_python({key: value for key, value in values.items() if key in known})
