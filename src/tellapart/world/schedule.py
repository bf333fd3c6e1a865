"""How every stage of the world is trained: through the package's own loop, on one thread."""

from __future__ import annotations

import tempfile
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


History = list[dict[str, Any]]
"""The logged lines of a training."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a stage learns: AdamW, warm-up over a tenth of the steps, then half a cosine down to 0.

    Args:
        steps: optimiser steps.
        batch_size: images per step.
        learning_rate: the highest, one number or one for each part.
        weight_decay: of AdamW.
        adam_beta2: of AdamW.
    """

    steps: int
    batch_size: int
    learning_rate: float | dict[str, float]
    weight_decay: float = 0.01
    adam_beta2: float = 0.999

    def fit(self, objective: Objective[Any], data: TrainingData, *, seed: int) -> History:
        """Train ``objective`` in place; returns the logged lines. Checkpoints are thrown away."""
        with tempfile.TemporaryDirectory(prefix="tellapart-world-") as scratch, one_thread():
            config = TrainConfig(
                output_dir=Path(scratch),
                learning_rate=self.learning_rate,
                max_steps=self.steps,
                per_device_train_batch_size=self.batch_size,
                warmup_steps=0.1,
                lr_scheduler_type="cosine",
                weight_decay=self.weight_decay,
                adam_beta2=self.adam_beta2,
                logging_steps=max(1, self.steps // 20),
                seed=seed,
            )
            return train(objective, data, config).history


@dataclass(frozen=True)
class Task:
    """One stage to be built.

    Args:
        name: of the stage.
        folder: where its model goes.
        schedule: how it is trained.
        needs: name of a stage it starts from -> that stage's folder.
        size: of the world.
        seed: decides its weights and the order of its images.
    """

    name: str
    folder: Path
    schedule: Schedule
    needs: dict[str, Path]
    size: str
    seed: int

    def fit(self, objective: Objective[Any], data: TrainingData) -> History:
        """Train ``objective`` in place; returns the logged lines."""
        return self.schedule.fit(objective, data, seed=mix_seeds(self.name, self.seed) % 2**32)


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread while the block runs: at these sizes two gain little and, on a busy machine, spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
