"""Whether weights are the ones that something was computed from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

SAMPLED = 64
"""Numbers of each weight that are compared at least; smaller weights are compared whole."""


@dataclass(frozen=True)
class Weights:
    """Tells whether weights have changed: by torch's count of changes, and by some of their values, as fused optimisers do not
    count.

    Args:
        versions: of each weight.
        values: of each weight, some.

    Example::

        before = Weights.of(model.parameters())
        optimizer.step()
        assert not before.hold(model.parameters())
    """

    versions: list[int]
    values: Tensor

    @staticmethod
    def of(weights: Iterable[Tensor]) -> Weights:
        """As they are now."""
        every = list(weights)
        flat = [weight.detach().reshape(-1) for weight in every]
        values = torch.cat([weight[:: max(1, len(weight) // SAMPLED)] for weight in flat])
        return Weights([weight._version for weight in every], values)

    def hold(self, weights: Iterable[Tensor]) -> bool:
        """Whether the weights are the same."""
        now = Weights.of(weights)
        return self.versions == now.versions and torch.equal(self.values, now.values)
