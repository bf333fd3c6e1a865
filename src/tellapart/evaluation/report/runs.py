"""The parts of a run on the page: its evaluation and its log."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.evaluation.alarms import Alarm, find_alarms
from tellapart.evaluation.report.record import Record, read_record
from tellapart.evaluation.results import METRICS_FILE, EvaluationResult, find_result, folder_of
from tellapart.files import read_text
from tellapart.run_files import LOG_FILE

START_FOLDER = "start"
"""Folder of a run that holds the evaluation of the model it began from."""

START_NAME = "start model"
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
        start: the same evaluation of the model that the run began from, where the run kept it.
        record: how the run was made, where it says so.
    """

    name: str
    result: EvaluationResult
    curves: dict[str, Curve] = field(default_factory=dict)
    start: EvaluationResult | None = None
    record: Record | None = None

    @cached_property
    def alarms(self) -> list[Alarm]:
        """The warnings from the log."""
        return find_alarms(self.curves, floor=self.record.floor if self.record else None)

    @property
    def selected_step(self) -> int | None:
        """The step whose checkpoint was selected, where one was."""
        return self.record.selected.get("step") if self.record else None


def read_run(folder: Path, *, name: str | None = None, protocol: str | None = None) -> RunView:
    """The evaluation under ``protocol`` (or the only one), the log and the record of the run in ``folder``.

    Args:
        folder: a run, or the folder of one evaluation.
        name: how to call it; default: the name it was evaluated under.
        protocol: name of a folder under ``eval``.

    Raises:
        UsageError: there is no such evaluation, or a file is damaged.
    """
    result = find_result(folder, protocol)
    log = folder / LOG_FILE
    curves = read_curves(log) if log.is_file() else {}
    return RunView(name or result.name, result, curves, _start(folder, result), read_record(folder))


def told_apart(runs: Sequence[RunView], folders: Sequence[str]) -> list[RunView]:
    """The runs, each with a name of its own: where several have one, their folders follow it.

    Args:
        runs: as read.
        folders: what the user called each.
    """
    count = Counter(run.name for run in runs)
    named = []
    for run, folder in zip(runs, folders, strict=True):
        name = run.name if count[run.name] == 1 else f"{run.name} ({folder})"
        named.append(run if name == run.name else replace(run, name=name, result=replace(run.result, name=name)))
    return named


def _start(folder: Path, result: EvaluationResult) -> EvaluationResult | None:
    """The start model's evaluation, if it was kept and was measured like ``result``."""
    kept = folder_of(folder / START_FOLDER, result.protocol, result.name)
    if not (kept / METRICS_FILE).is_file():
        return None
    start = EvaluationResult.load(kept)
    alike = not start.protocol.differences(result.protocol) and start.captions.keys() == result.captions.keys()
    return start if alike else None


def with_start(runs: Sequence[RunView]) -> list[RunView]:
    """The runs after the model that all of them began from, as the first row; unchanged if they began from several, did
    not say, or the first row is such a model already."""
    starts = [run.start for run in runs if run.start is not None]
    if not starts or any(start.captions != starts[0].captions for start in starts):
        return list(runs)
    if runs[0].result.captions == starts[0].captions and runs[0].start is None:
        return list(runs)
    return [RunView(START_NAME, starts[0]), *runs]


def read_curves(log: Path) -> dict[str, Curve]:
    """Every number of a ``metrics.jsonl`` by key.

    A resumed run may log a step twice: the later line holds. A last line cut short by a kill is ignored.

    Raises:
        UsageError: another line is not a JSON object with a ``step``.
    """
    values: dict[str, dict[int, float]] = {}
    lines = read_text(log, errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            step = int(entry["step"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            if number == len(lines):
                break
            raise UsageError(f"{log}:{number} is not a log entry ({error}): remove the line.") from error
        for key, value in entry.items():
            if key not in POSITION and _is_number(value):
                values.setdefault(key, {})[step] = float(value)
    return {key: sorted(points.items()) for key, points in values.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
