"""The endless sequence of images that a training takes its steps from, which follows from a seed alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tellapart.draws import mix_seeds
from tellapart.errors import UsageError

LYING_TOGETHER = 1000
"""Images that count as stored together where nothing better is known."""

_KEPT = 2


class Order:
    """A sequence of epochs, each with all images in a new order; any position is computed directly.

    Args:
        size: images in an epoch.
        seed: decides the order.
        window: None shuffles all images. A number N shuffles the runs of images that are stored together, joins them, and
            shuffles within N images at a time, so that images read at about the same time are stored in few places.
        runs: how many images each run has, in the order of the data; None takes a thousand each.

    Raises:
        UsageError: the window is below 1.
    """

    def __init__(self, size: int, seed: int, *, window: int | None = None, runs: Sequence[int] | None = None) -> None:
        if window is not None and window < 1:
            raise UsageError(f"shuffle_window is {window}: give at least 1, or null to shuffle all images.")
        self.size, self.seed, self.window = size, seed, window
        self._runs = list(runs or [min(LYING_TOGETHER, size - i) for i in range(0, size, LYING_TOGETHER)])
        self._epochs: dict[int, Tensor] = {}

    def __getitem__(self, position: int) -> int:
        """The image at a position from 0 up."""
        return int(self._epoch(position // self.size)[position % self.size])

    def _epoch(self, number: int) -> Tensor:
        if number not in self._epochs:
            generator = torch.Generator().manual_seed(mix_seeds(self.seed, "order", number))
            whole = self.window is None
            found = torch.randperm(self.size, generator=generator) if whole else self._windowed(generator)
            self._epochs = dict([*self._epochs.items(), (number, found)][-_KEPT:])
        return self._epochs[number]

    def _windowed(self, generator: torch.Generator) -> Tensor:
        assert self.window is not None
        runs = torch.arange(self.size).split(self._runs)
        joined = torch.cat([runs[i] for i in torch.randperm(len(runs), generator=generator).tolist()])
        return torch.cat([part[torch.randperm(len(part), generator=generator)] for part in joined.split(self.window)])
