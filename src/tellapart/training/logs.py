"""Logs of a run: exact means over a step, ``metrics.jsonl``, trackers and the progress bar."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tellapart.files import read_text, to_disk, write_text
from tellapart.progress import Bar, bar
from tellapart.run_files import LOG_FILE
from tellapart.training.config import TrainConfig
from tellapart.training.devices import Devices
from tellapart.verdicts.rules import EVAL_PREFIX


class Means:
    """Per-item values of one step, whose means are over all items of all micro-batches and devices."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}

    def add(self, logs: dict[str, Tensor]) -> None:
        """Take in values, one an item, in any shape."""
        for name, values in logs.items():
            self._values.setdefault(name, []).append(values.detach().reshape(-1))

    def not_finite(self, name: str) -> bool:
        """Whether a value of this name, on this device, is not finite."""
        return any(not bool(values.isfinite().all()) for values in self._values.get(name, ()))

    def result(self, devices: Devices) -> dict[str, float]:
        """Name -> mean; a name without any item is left out. Every device must call this."""
        own = {}
        for name, parts in self._values.items():
            values = torch.cat(parts).cpu().double()
            own[name] = (float(values.sum()), len(values))
        totals: dict[str, tuple[float, int]] = {}
        for sums in devices.gather_objects(own):
            for name, (total, count) in sums.items():
                before = totals.get(name, (0.0, 0))
                totals[name] = (before[0] + total, before[1] + count)
        return {name: total / count for name, (total, count) in totals.items() if count}


class Stopwatch:
    """Seconds a named phase took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the time the block takes to ``seconds/<phase>``."""
        start = time.perf_counter()
        yield
        key = f"seconds/{phase}"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - start


def _step_of(line: dict[str, Any]) -> float:
    """The step of a logged line; infinite where it has none, since no run has written it."""
    step = line.get("step")
    return step if type(step) is int else math.inf


def _is_evaluation(line: dict[str, Any]) -> bool:
    return any(name.startswith(EVAL_PREFIX) for name in line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines; a line cut short by a killed process is left out, and so is anything else."""
    lines = []
    for text in read_text(path, errors="replace").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


class RunLog:
    """Writes one line for every logged step and evaluation, on the main device only.

    Args:
        config: the run's options.
        devices: decides who writes, and holds the trackers.
        step: the step the run starts from; older lines are kept, later ones dropped: they will be written again.
        evaluates: whether it starts with the evaluation after that step, whose line is dropped, too.
    """

    def __init__(self, config: TrainConfig, devices: Devices, step: int, *, evaluates: bool = False) -> None:
        self._path, self._devices = config.output_dir / LOG_FILE, devices
        self._bar: Bar | None = None
        self.history = [
            line
            for line in read_lines(self._path)
            if step and _step_of(line) <= step and not (evaluates and line["step"] == step and _is_evaluation(line))
        ]
        if devices.is_main:
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in self.history))
        devices.wait()

    def evaluation_of(self, step: int) -> dict[str, float]:
        """Metrics of the evaluation after a step, without ``eval_``; empty where none was logged."""
        lines = [line for line in self.history if line.get("step") == step and _is_evaluation(line)]
        values = [(name, value) for line in lines for name, value in line.items() if name.startswith(EVAL_PREFIX)]
        return {name.removeprefix(EVAL_PREFIX): value for name, value in values if value is not None}

    def write(self, step: int, epoch: float, values: dict[str, float]) -> None:
        """Add a line. A value that is not finite becomes null, which every reader of JSON accepts."""
        line = {"step": step, "epoch": epoch}
        line |= {name: value if math.isfinite(value) else None for name, value in values.items()}  # type: ignore[misc]
        self.history.append(line)
        if not self._devices.is_main:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._devices.accelerator.log({key: value for key, value in line.items() if value is not None}, step=step)
        if self._bar is not None:
            shown = [f"{name} {values[name]:.4g}" for name in ("loss", "reward") if name in values]
            if shown:
                self._bar.note("  ".join(shown))

    def flush(self) -> None:
        """Have the lines on disk, since a checkpoint that is on disk counts on them."""
        to_disk(self._path)

    def advance(self) -> None:
        """Move the progress bar on by one step."""
        if self._bar is not None:
            self._bar.advance()

    @contextmanager
    def running(self, config: TrainConfig, done: int, total: int) -> Iterator[None]:
        """Trackers are open and the progress bar is shown while the block runs."""
        if not self._devices.is_main:
            yield
            return
        accelerator = self._devices.accelerator
        try:
            accelerator.init_trackers("tellapart", _plain(config.to_dict()), _named(config))
            with bar("training", total, done=done) as self._bar:
                yield
        finally:
            # Not accelerator.end_training(): it would end the process group too, and the caller may train again.
            for tracker in accelerator.trackers:
                tracker.finish()


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Options as a tracker's table takes them: no containers, no blanks."""
    return {k: v if isinstance(v, int | float | str) else json.dumps(v) for k, v in config.items()}


def _named(config: TrainConfig) -> dict[str, Any]:
    return {tracker: {"name": config.output_dir.name} for tracker in ("wandb", "trackio")}
