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
    """Tells whether weights have changed: by where they lie, by torch's count of changes, and by some of their values, as fused
    optimisers do not count. A change of a few numbers through ``.data`` may go unseen.

    Args:
        places: address, shape and count of changes of each weight; of weights that were made in inference mode torch counts none.
        values: of each weight, some.
        sampled: how many at least.

    Example::

        before = Weights.of(model.parameters())
        optimizer.step()
        assert not before.hold(model.parameters())
    """

    places: list[tuple[int, torch.Size, int]]
    values: Tensor
    sampled: int

    @staticmethod
    def of(weights: Iterable[Tensor], *, sampled: int = SAMPLED) -> Weights:
        """As they are now."""
        every = [weight.detach() for weight in weights]
        places = [
            (weight.data_ptr(), weight.shape, -1 if weight.is_inference() else weight._version) for weight in every
        ]
        flat = [weight.reshape(-1) for weight in every]
        some = [weight[:: max(1, len(weight) // sampled)] for weight in flat]
        return Weights(places, torch.cat(some), sampled)

    def hold(self, weights: Iterable[Tensor]) -> bool:
        """Whether the weights are the same."""
        now = Weights.of(weights, sampled=self.sampled)
        return self.places == now.places and torch.equal(self.values, now.values)
