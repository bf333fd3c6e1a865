"""The state of a run besides weights and optimiser, and the kinds of its values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class State:
    """The state of a run besides weights and optimiser. Random numbers need no state: each step seeds its own.

    Args:
        step: optimiser steps done.
        epoch: passes over the images done.
        effective_batch_size: images in a step.
        world_size: processes that shared a step.
        data: fingerprint of the training data.
        selection: see ``state``.
        config: the run's options.
        doctor: see ``state``.
        ended: why the run was ended before its last step; empty if it was not.
        unevaluated: whether the evaluation after this step is still to be done, since the run was asked to stop.
        contents: models, plugins and what else the run is made of, its data left out -> digest of the content.
        measured: digest of how its evaluations measure; empty where none was told.
    """

    step: int
    epoch: float
    effective_batch_size: int
    world_size: int
    data: str
    selection: dict[str, Any]
    config: dict[str, Any]
    doctor: dict[str, Any] = field(default_factory=dict)
    ended: str = ""
    unevaluated: bool = False
    contents: dict[str, str] = field(default_factory=dict)
    measured: str = ""


def state_of(told: Any) -> State:
    """The state that a file holds.

    Args:
        told: its JSON, which anybody may have written.

    Raises:
        ValueError: a value is missing or of a wrong kind.
    """
    if not isinstance(told, dict) or not told.keys() <= _KINDS.keys():
        raise ValueError("it is not the state of a run")
    wrong = next((name for name, value in told.items() if not _KINDS[name](value)), None)
    if wrong is not None:
        raise ValueError(f"{wrong} is of a wrong kind")
    try:
        return State(**told)
    except TypeError as error:
        raise ValueError("a value is missing") from error


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_dict_of(value: Any, kind: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(kind, value.values()))


def _is_logged(value: Any) -> bool:
    """A step and a value."""
    return isinstance(value, list) and len(value) == 2 and _is_count(value[0]) and type(value[1]) in (int, float)


def _is_selection(value: Any) -> bool:
    if value == {}:
        return True
    if not (isinstance(value, dict) and _is_dict_of(value.get("start"), _is_number) and "best" in value):
        return False
    best = value["best"]
    if best is None:
        return True
    return (
        isinstance(best, dict)
        and best.keys() == {"step", "metric", "value"}
        and _is_count(best["step"])
        and isinstance(best["metric"], str)
        and _is_number(best["value"])
    )


def _is_examination(value: Any) -> bool:
    if value == {}:
        return True
    return (
        isinstance(value, dict)
        and _is_dict_of(value.get("first"), _is_logged)
        and _is_dict_of(value.get("spoken", {}), _is_logged)
        and _is_dict_of(value.get("last"), lambda last: type(last) in (int, float))
        and _is_dict_of(value.get("rows"), _is_count)
        and isinstance(value.get("told"), list)
        and all(isinstance(name, str) for name in value["told"])
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "epoch": _is_number,
    "effective_batch_size": _is_count,
    "world_size": _is_count,
    "data": lambda value: isinstance(value, str),
    "selection": _is_selection,
    "config": lambda value: isinstance(value, dict) and "seed" in value,
    "doctor": _is_examination,
    "ended": lambda value: isinstance(value, str),
    "unevaluated": lambda value: isinstance(value, bool),
    "contents": lambda value: _is_dict_of(value, lambda digest: isinstance(digest, str)),
    "measured": lambda value: isinstance(value, str),
}
