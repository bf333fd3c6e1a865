"""What a run remembers of how it was made, for the commands that read runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tellapart.cli.schema import DataSection, EvaluationSection, ListenerSection


@dataclass(frozen=True)
class Made:
    """The sections of a run's recipe that say what it is measured on."""

    data: DataSection
    listener: ListenerSection
    evaluation: EvaluationSection


def made(run: Path) -> Made | None:
    """The run's own account, or None if it has none (a model folder, a file)."""
    try:
        recipe = json.loads((run / "run.json").read_text(encoding="utf-8"))["recipe"]
        return Made(
            _section(DataSection, recipe), _section(ListenerSection, recipe), _section(EvaluationSection, recipe)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _section(kind: type[Any], recipe: dict[str, Any]) -> Any:
    """A section from the recipe's mapping of the same name; unknown keys of other versions are passed over."""
    values = recipe[kind.__name__.removesuffix("Section").lower()]
    known = {field.name for field in fields(kind)}
    values = {key: value for key, value in values.items() if key in known}
    for key in ("images", "features"):
        if values.get(key) is not None:
            values[key] = Path(values[key])
    return kind(**values)
