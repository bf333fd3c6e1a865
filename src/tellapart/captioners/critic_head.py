"""What turns hidden states into values: a residual MLP, or one linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from tellapart.errors import UsageError

Head = Literal["residual", "linear"]


class ResidualBlock(nn.Module):
    """``x + W_2 GELU(W_1 LayerNorm(x))``, four times as wide inside.

    Args:
        size: D.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.expand, self.contract = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, states: Tensor) -> Tensor:
        """``[M, D]`` from ``[M, D]``."""
        return states + self.contract(nn.functional.gelu(self.expand(self.norm(states))))


class ValueHead(nn.Module):
    """A value for every hidden state, in full precision.

    Args:
        body: ``[M, D] -> [M, D]``.
        size: D.
    """

    def __init__(self, body: nn.Module, size: int) -> None:
        super().__init__()
        self.body, self.value = body, nn.Linear(size, 1)

    def forward(self, states: Tensor) -> Tensor:
        """``[M]`` values of states ``[M, D]``, whatever they are held in."""
        read = self.body(states.to(self.value.weight.dtype))
        # In bfloat16 a value of 10 is rounded by 0.03, more than penalties are often apart.
        with torch.autocast(states.device.type, enabled=False):
            return self.value(read.to(self.value.weight.dtype)).squeeze(-1)


def residual_head(size: int, blocks: int) -> ValueHead:
    """So many residual blocks, two dense layers with GELU, and a linear layer.

    With 5 blocks at D = 2560 it has 275.3 million weights, the size that Dzabraev et al. (2024) give; its drawing is not in
    the published text, so the arrangement is ours.

    Raises:
        UsageError: there are no blocks.
    """
    if blocks < 1:
        raise UsageError(f"critic.blocks={blocks} leaves no residual block: give at least 1, or head linear.")
    dense = [layer for _ in range(2) for layer in (nn.Linear(size, size), nn.GELU())]
    return ValueHead(nn.Sequential(*(ResidualBlock(size) for _ in range(blocks)), *dense), size)


def linear_head(size: int, blocks: int) -> ValueHead:
    """One linear layer, which training is known to collapse with (Dzabraev et al., 2024); ``blocks`` says nothing here."""
    return ValueHead(nn.Identity(), size)


_HEADS: dict[str, Callable[[int, int], ValueHead]] = {"residual": residual_head, "linear": linear_head}


def value_head(kind: Head, size: int, blocks: int) -> ValueHead:
    """The head of a name, for states of width ``size``.

    Raises:
        UsageError: there is no such head, or it has no blocks.
    """
    if kind not in _HEADS:
        raise UsageError(f"critic.head={kind!r} is unknown: choose {' or '.join(_HEADS)}.")
    return _HEADS[kind](size, blocks)
