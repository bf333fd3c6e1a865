"""Checks before the first step."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tellapart.captioners.base import Captioner
from tellapart.captioners.contract import check_captioner
from tellapart.data.dataset import Collate
from tellapart.errors import UsageError
from tellapart.launch import processes
from tellapart.training.config import TrainConfig
from tellapart.training.sharding import require_shardable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tellapart.data.dataset import CaptionDataset, Example
    from tellapart.types import Batch

LOOKED_THROUGH = 100
"""Images among which a second picture is looked for that differs from the first."""


def check_together(objective: Any, config: TrainConfig, evaluates: bool) -> None:
    """Raise where the options of a run contradict its objective, or each other.

    Raises:
        UsageError: naming the option to change.
    """
    if not objective.decomposes and processes() > 1:
        raise UsageError(
            f"{type(objective).__name__} compares the images of a batch with each other, so several processes would change "
            "it: train it in one."
        )
    if not objective.decomposes and config.gradient_accumulation_steps > 1:
        raise UsageError(
            f"{type(objective).__name__} compares the images of a batch with each other, so "
            f"gradient_accumulation_steps={config.gradient_accumulation_steps} would change it: set 1, "
            "and a larger per_device_train_batch_size."
        )
    if config.shard != "none":
        require_shardable(objective, config.shard)
    require_evaluation(config, evaluates)


def require_evaluation(config: TrainConfig, evaluates: bool) -> None:
    """Raise where an option acts on evaluations and there are none.

    Raises:
        UsageError: naming the option.
    """
    for option in ("eval_steps", "metric_for_best_model"):
        if not evaluates and getattr(config, option) is not None:
            raise UsageError(f"{option}={getattr(config, option)!r} needs an evaluation: give one, or leave it out.")


def check_captioners(
    objective: nn.Module, dataset: CaptionDataset, collate: Callable[[Sequence[Example]], Batch]
) -> None:
    """Hold every captioner that an objective trains to the contract, on two different pictures of the data.

    Raises:
        UsageError: a captioner ignores the image, scores other than it draws, or loses EOS; or all pictures are equal.
    """
    captioners = [child for child in objective.children() if isinstance(child, Captioner)]
    if captioners:
        batch = collate(two_pictures(dataset, collate))
        for captioner in captioners:
            check_captioner(captioner, batch.to(device_of(captioner)))


def two_pictures(dataset: CaptionDataset, collate: Callable[[Sequence[Example]], Batch]) -> list[Example]:
    """The first image and the first other one that shows something else (in its features, where no picture is read)."""

    def content(example: Example) -> str:
        return collate.fingerprint(example) if isinstance(collate, Collate) else example.image.fingerprint()

    first = dataset[0]
    known = content(first)
    # Another file may hold the same picture.
    others = (
        other
        for other in dataset.examples[1:LOOKED_THROUGH]
        if content(other) != known and _differ(collate([first, other]))
    )
    return [first, *islice(others, 1)]


def _differ(batch: Batch) -> bool:
    """Whether any model is given something else of the second image of a batch than of the first."""
    return any(not torch.equal(rows[0], rows[1]) for parts in batch.inputs.values() for rows in parts.values())


def device_of(module: nn.Module) -> torch.device:
    """Where a module is."""
    return next(module.parameters()).device
