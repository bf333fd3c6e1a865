"""How every stage of the world is trained: through the package's own loop, on one thread, into a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tellapart.draws import mix_seeds
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train

if TYPE_CHECKING:
    from tellapart.data.loader import TrainingData
    from tellapart.types import Objective

LOG = "training.jsonl"
"""The logged lines of a stage's training, kept in its folder."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a stage learns: AdamW with a warm-up over a tenth of the steps, then half a cosine down to 0.

    Args:
        steps: optimiser steps.
        batch_size: images a step.
        learning_rate: the highest, one number or one for each part.
        weight_decay: of AdamW.
    """

    steps: int
    batch_size: int
    learning_rate: float | dict[str, float]
    weight_decay: float = 0.01

    def fit(self, objective: Objective[Any], data: TrainingData, *, seed: int, folder: Path) -> None:
        """Train ``objective`` in place; ``folder`` keeps the log and nothing else."""
        output_dir = folder / ".training"
        config = TrainConfig(
            output_dir=output_dir,
            learning_rate=self.learning_rate,
            max_steps=self.steps,
            per_device_train_batch_size=self.batch_size,
            warmup_steps=0.1,
            lr_scheduler_type="cosine",
            weight_decay=self.weight_decay,
            logging_steps=max(1, self.steps // 20),
            seed=seed,
        )
        with one_thread():
            run = train(objective, data, config)
        (run.output_dir / "metrics.jsonl").replace(folder / LOG)
        shutil.rmtree(output_dir)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on a single thread while the block runs: at these sizes two threads gain little and, on a busy machine, spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """torch's global generator as these parts decide while the block runs (weights are drawn from it), then as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix_seeds(*parts))
        yield
