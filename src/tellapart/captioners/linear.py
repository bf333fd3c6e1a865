"""The linear layers of a decoder that is read by its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tellapart.captioners.fused import FastConv1D, FastLinear
from tellapart.products import activated, added, product

Rows = Callable[[Tensor], Tensor]
"""From rows ``[n, D]`` to rows ``[n, D']``."""

Sum = Callable[[Tensor, Tensor], Tensor]
"""Of ``[n, D]`` and what comes of rows ``[n, D']``."""

WeightAndBias = tuple[Tensor, Tensor | None]
"""``[N, K]``, and ``[N]`` or none, of a linear layer."""


def weights_of(module: Any) -> WeightAndBias | None:
    """Those of a plain layer; none of adapters and quantised layers, which are read through their modules."""
    if type(module) is FastConv1D:
        return module.weight.t(), module.bias
    return (module.weight, module.bias) if type(module) is FastLinear else None


class Linear:
    """Computes linear layers."""

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As ``products.product``."""
        return product(rows, weight, bias)

    def added(self, to: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As ``products.added``."""
        return added(to, rows, weight, bias)

    def activated(self, rows: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
        """As ``products.activated``."""
        return activated(rows, weight, bias, kind)

    def elsewhere(self) -> None:
        """Called when a layer will be computed by its own module."""
