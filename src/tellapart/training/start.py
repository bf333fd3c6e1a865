"""What is checked before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from tellapart.captioners.base import Captioner
from tellapart.captioners.contract import check_captioner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tellapart.data.dataset import CaptionDataset, Example
    from tellapart.types import Batch

LOOKED_THROUGH = 100
"""Images among which a second picture is looked for that differs from the first."""


def check_captioners(
    objective: nn.Module, dataset: CaptionDataset, collate: Callable[[Sequence[Example]], Batch]
) -> None:
    """Hold every captioner that an objective trains to the contract, on two different pictures of the data.

    Raises:
        UsageError: a captioner ignores the image, scores other than it draws, or loses EOS; or all pictures are equal.
    """
    captioners = [child for child in objective.children() if isinstance(child, Captioner)]
    if captioners:
        batch = collate(two_pictures(dataset))
        for captioner in captioners:
            check_captioner(captioner, batch.to(device_of(captioner)))


def two_pictures(dataset: CaptionDataset) -> list[Example]:
    """The first image and the first other one that shows something else."""
    first, known = dataset[0], dataset[0].image.fingerprint()
    others = dataset.examples[1:LOOKED_THROUGH]
    return [first, *[other for other in others if other.image.fingerprint() != known][:1]]


def device_of(module: nn.Module) -> torch.device:
    """Where a module is."""
    return next(module.parameters()).device
