"""Finished trainings: the folder and the records in it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tellapart.training.frozen import Turns
from tellapart.training.selection import Best
from tellapart.training.state import State

_PACKAGES = ("tellapart", "torch", "transformers", "accelerate", "peft", "safetensors")


@dataclass(frozen=True)
class Run:
    """A finished training.

    Args:
        output_dir: its folder.
        step: optimiser steps done.
        history: lines of ``metrics.jsonl``: logged steps, and evaluations under names that begin with ``eval_``.
        best: the selected checkpoint, copied to ``output_dir/best``, when a metric selects.
        ended: why the doctor ended it before its last step; empty if it did not.
        turns: with ``training.shard``, whoever reads a large frozen model afterwards needs all processes: those that do not read
            one, or no more, call its ``finish``.
    """

    output_dir: Path
    step: int
    history: list[dict[str, Any]]
    best: Best | None
    ended: str = ""
    turns: Turns = field(default_factory=Turns, repr=False, compare=False)

    @property
    def checkpoint(self) -> Path:
        """Folder of the last checkpoint."""
        return self.output_dir / f"checkpoint-{self.step}"

    @property
    def selected(self) -> Path:
        """Folder of the selected checkpoint; that of the last one where no metric selects."""
        return self.checkpoint if self.best is None else self.output_dir / "best"

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of ``history`` that are evaluations."""
        return [line for line in self.history if any(name.startswith("eval_") for name in line)]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what is computed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def describe(state: State, start: int, total_steps: int, recipe: dict[str, Any] | None) -> dict[str, Any]:
    """The contents of ``run.json``.

    Args:
        state: the run as if it began afresh.
        start: the step it begins at; above 0 it was resumed.
        total_steps: the step it ends at.
        recipe: whatever made the run.
    """
    return {
        "versions": versions(),
        "seed": state.config["seed"],
        "config": state.config,
        "recipe": recipe,
        "data": state.data,
        "effective_batch_size": state.effective_batch_size,
        "world_size": state.world_size,
        "total_steps": total_steps,
        "resumed_at_step": start or None,
    }
