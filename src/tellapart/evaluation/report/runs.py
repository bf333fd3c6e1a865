"""What the page needs of a run: its evaluation and its log."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.evaluation.results import EvaluationResult, find_result

LOG_FILE = "metrics.jsonl"
POSITION = ("step", "epoch")
"""Keys of a line that say where training stood, not how well it went."""

Curve = list[tuple[int, float]]
"""``(step, value)`` pairs by rising step."""


@dataclass(frozen=True)
class RunView:
    """One row of the table and one line in every plot.

    Args:
        name: how the page calls it.
        result: its evaluation.
        curves: key of the training log -> values over steps; empty for what was never trained (human captions).
    """

    name: str
    result: EvaluationResult
    curves: dict[str, Curve] = field(default_factory=dict)


def read_run(folder: Path, *, name: str | None = None, protocol: str | None = None) -> RunView:
    """The evaluation under ``protocol`` (or the only one) and the log of the run in ``folder``.

    Args:
        folder: a run, or the folder of one evaluation.
        name: how to call it; default: the name it was evaluated under.
        protocol: name of a folder under ``eval``.

    Raises:
        UsageError: there is no such evaluation, or a file is damaged.
    """
    result = find_result(folder, protocol)
    log = folder / LOG_FILE
    return RunView(name or result.name, result, read_curves(log) if log.is_file() else {})


def read_curves(log: Path) -> dict[str, Curve]:
    """Every number of a ``metrics.jsonl`` by key.

    A resumed run may log a step twice: the later line holds. A last line cut short by a kill is ignored.

    Raises:
        UsageError: another line is not a JSON object with a ``step``.
    """
    values: dict[str, dict[int, float]] = {}
    lines = log.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            step = int(entry["step"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise UsageError(f"{log}:{number} is not a log entry ({error}): remove the line.") from error
        for key, value in entry.items():
            if key not in POSITION and _is_number(value):
                values.setdefault(key, {})[step] = float(value)
    return {key: sorted(points.items()) for key, points in values.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
