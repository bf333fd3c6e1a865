"""Logs of other trainers as curves under our names: TRL (any Hugging Face trainer) and verl, as JSON lines or tensorboard."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError
from tellapart.evaluation.alarms import Curve
from tellapart.files import checkpoints
from tellapart.run_files import LOG_FILE, STATE_FILE
from tellapart.verdicts.rules import EVAL_PREFIX, NON_FINITE

EVENTS = "events.out.tfevents*"

_VERL = {
    "critic/rewards/mean": "reward",
    "critic/score/mean": "rewards/score",
    "response_length/mean": "completions/mean_length",
    "response_length/clip_ratio": "completions/clipped_ratio",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/kl_loss": "kl",
    "actor/ppo_kl": "kl",
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/pg_clipfrac": "clip_ratio",
}
"""verl's name -> ours. A later name of one of ours does not replace an earlier one."""

LENGTH, EVAL_LENGTH = "completions/mean_length", f"{EVAL_PREFIX}mean_length"
_SMOOTHED = 10
"""Logged values that are averaged for the rules on length: single steps of training are noisy."""

_REWARD_PART = re.compile(r"^rewards?/([^/]+)/mean$")
_MUST_BE_FINITE = ("loss", "grad_norm", "reward")

Entry = tuple[int, Mapping[str, Any]]
"""A step, and what was logged at it."""


def read_other_log(path: Path) -> dict[str, Curve] | None:
    """Our name -> curve, of a log of another trainer; nothing where ``path`` holds none.

    Args:
        path: a ``.jsonl`` of log lines, a ``trainer_state.json``, a tensorboard file, or a folder with one of these (or with
            checkpoints that have one).

    Names are mapped: TRL's are ours, apart from ``rewards/<name>/mean``; verl's are listed in docs/how-to/doctor.md. The length
    of completions also serves the rules on length, averaged over ten logged values. A loss, gradient norm or reward that is not
    finite is kept as the sign of ``non finite``.

    Raises:
        UsageError: a tensorboard log, and tensorboard is not installed.

    Example:
        >>> read_other_log(Path("runs/trl"))["completions/clipped_ratio"][-1]
        (500, 0.02)
    """
    entries = _entries(path)
    if entries is None:
        return None
    values: dict[str, dict[int, float]] = {}
    for step, logged in entries:
        for key, value in _renamed(logged).items():
            if math.isfinite(value):
                values.setdefault(key, {})[step] = value
            elif key.partition("/")[0] in _MUST_BE_FINITE:
                values.setdefault(NON_FINITE, {})[step] = 1.0
    curves: dict[str, Curve] = {key: sorted(points.items()) for key, points in values.items()}
    if LENGTH in curves and EVAL_LENGTH not in curves:
        curves[EVAL_LENGTH] = _smoothed(curves[LENGTH])
    return curves


def is_our_run(path: Path) -> bool:
    """Whether a folder has a log of ours; verl's file of the same name has its figures in ``data``."""
    log = path / LOG_FILE
    if not log.is_file():
        return False
    with log.open(encoding="utf-8", errors="replace") as lines:
        return '"data": {' not in lines.readline()


def _entries(path: Path) -> Iterable[Entry] | None:
    """The log's entries, where there are any."""
    if path.is_dir():
        found = _in_folder(path)
        return None if found is None else _entries(found)
    if path.name.startswith("events.out.tfevents"):
        return _tensorboard(path)
    try:
        text = path.read_text(encoding="utf-8")
        if path.name == STATE_FILE:
            return [(int(row["step"]), row) for row in json.loads(text)["log_history"]]
        if path.suffix == ".jsonl":
            return list(_lines(text)) or None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return None


def _in_folder(folder: Path) -> Path | None:
    """The log of a folder: a state, the last checkpoint's state, a tensorboard file below, or lines of verl."""
    if (folder / STATE_FILE).is_file():
        return folder / STATE_FILE
    states = [file for checkpoint in checkpoints(folder).values() if (file := checkpoint / STATE_FILE).is_file()]
    events = sorted(folder.rglob(EVENTS), key=lambda file: (file.stat().st_mtime, file.name))
    lines = [file for file in sorted(folder.glob("*.jsonl")) if _entries(file) is not None]
    return next((found[-1] for found in (states, lines, events) if found), None)


def _lines(text: str) -> Iterator[Entry]:
    """Lines with a step: ``{"step": 1, "data": {...}}`` of verl, ``{"step": 1, "reward": ...}`` of others."""
    lines = text.removesuffix("\n").split("\n")  # and not at the separators that texts in them may hold
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            step = int(row["step"] if "step" in row else row["global_step"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            if number == len(lines):  # cut short by a kill
                return
            raise
        logged = row["data"] if isinstance(row.get("data"), dict) else row
        yield step, logged


def _tensorboard(path: Path) -> list[Entry]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise UsageError(
            "reading a tensorboard log needs tensorboard, which is not installed: pip install 'tellapart[tensorboard]'."
        ) from error
    log = EventAccumulator(str(path), size_guidance={"scalars": 0})
    log.Reload()
    steps: dict[int, dict[str, float]] = {}
    for tag in log.Tags()["scalars"]:
        name = re.sub("^train/", "", re.sub("^eval/", EVAL_PREFIX, tag))
        for event in log.Scalars(tag):
            steps.setdefault(event.step, {})[name] = event.value
    return sorted(steps.items())


def _renamed(logged: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in logged.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or key in ("step", "global_step"):
            continue
        part = _REWARD_PART.match(key)
        found.setdefault(f"rewards/{part[1]}" if part else _VERL.get(key, key), float(value))
    return found


def _smoothed(curve: Curve) -> Curve:
    """Means of ten values each, at the step of the last of them; the rest at the end is left out. Short curves stay."""
    if len(curve) < 2 * _SMOOTHED:
        return curve
    pieces = [curve[start : start + _SMOOTHED] for start in range(0, len(curve) - _SMOOTHED + 1, _SMOOTHED)]
    return [(piece[-1][0], sum(value for _, value in piece) / len(piece)) for piece in pieces]
