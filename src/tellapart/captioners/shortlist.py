"""The likeliest next word over a large vocabulary, found in bfloat16 and settled in float32.

Greedy search needs one number of each row of logits: the place of the highest. Computing all of them reads the whole output
embedding at each step, 77 MB for a GPT-2 of width 384, while the layers before it read less. In bfloat16 it is half as much,
and processors with instructions for it multiply several times as fast. The error of such a logit has a bound, so a few words
remain that may have the highest; their logits in float32 decide. Where float32's own rounding could decide between two of them,
all logits are computed as without a shortlist: the words are always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tellapart.captioners.unchanged import Weights

LEAST = 2**22
"""Weights of an output embedding from which a shortlist is quicker: smaller ones stay in a processor's cache."""

ROUNDING = 2.0**-8
"""Of a bfloat16 number at most; twice the unit roundoff, so that what is computed with it may be rounded, too."""

FLOAT32 = 1.01 * 2.0**-24
"""Unit roundoff of float32, and a little more: a sum of n products, in whatever order, differs from the exact one by at most n
times this share of the sum of their sizes (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1)."""

FEW = 256
"""Words of a row that may have the highest logit, on average, up to which they are looked at one by one."""

ALIGNED = 32
"""Columns of bfloat16 that processors multiply together."""

ROWS = 4096
"""Rows of the output embedding that are measured at a time."""


def quick(weight: Tensor) -> bool:
    """Whether a shortlist of an output embedding ``[V, D]`` is quicker than all its logits, and settles as they would."""
    return (
        type(weight) in (Tensor, torch.nn.Parameter)  # not a shard
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= LEAST
        and getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
        and torch.get_float32_matmul_precision() == "highest"
    )


class Shortlist:
    """Finds the next word of greedy search, with the output embedding as it is now.

    Args:
        weight: ``[V, D]`` of the output embedding, float32.
        bias: ``[V]``, or none.

    Example::

        shortlist = Shortlist(head.weight, head.bias)
        words = shortlist.highest(states, lambda scores: scores)  # states [n, D] -> [n], or none
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # A bias is a further column, which a 1 is read for: added afterwards, it would be rounded apart.
        columns = [weight.detach()] if bias is None else [weight.detach(), bias.detach()[:, None]]
        self._columns, self._has_bias = columns, bias is not None
        self._width = sum(column.shape[1] for column in columns)
        padded = self._width if bias is None else -(-self._width // ALIGNED) * ALIGNED
        self._rounded = torch.zeros((len(weight), padded), dtype=torch.bfloat16)
        lost, longest = [], []
        for begin in range(0, len(weight), ROWS):
            exact = torch.cat([column[begin : begin + ROWS] for column in columns], dim=1)
            rounded = self._rounded[begin : begin + ROWS, : self._width].copy_(exact).float()
            lost.append((exact - rounded).norm(dim=1).max())
            longest.append(rounded.norm(dim=1).max())
        self._lost, self._longest = torch.stack(lost).max(), torch.stack(longest).max()

    def highest(self, states: Tensor, restrict: Callable[[Tensor], Tensor]) -> Tensor | None:
        """``[n]`` ids of the highest logits, the first of equals; none where only all float32 logits can tell.

        Args:
            states: ``[n, D]`` that the output embedding reads, float32.
            restrict: makes the scores ``[n, V]`` of words that must not follow ``-inf``.
        """
        exact = functional.pad(states, (0, 1), value=1.0) if self._has_bias else states
        rounded = functional.pad(exact, (0, self._rounded.shape[1] - self._width)).bfloat16()
        scores = restrict(functional.linear(rounded, self._rounded))
        lowest = self._lowest(scores, exact, rounded[:, : self._width].float())
        if not lowest.isfinite().all():
            return None
        rows, words = (scores >= lowest[:, None]).nonzero(as_tuple=True)
        return None if len(words) > FEW * len(states) else self._settled(exact, rows, words)

    def _lowest(self, scores: Tensor, exact: Tensor, rounded: Tensor) -> Tensor:
        """``[n]`` bfloat16: whatever has the highest exact logit has a score of at least this.

        By the inequality of Cauchy and Schwarz a score differs from the logit by at most the state times what rounding took from
        a row of the embedding, plus what rounding took from the state times the longest row, plus the rounding of the score and
        of sums in float32, here and of the exact logits.
        """
        length = exact.norm(dim=1)
        error = length * self._lost + (exact - rounded).norm(dim=1) * self._longest
        error += 4 * (self._width + 1) * FLOAT32 * rounded.norm(dim=1) * self._longest
        error *= 1 + 2 * self._width * FLOAT32  # the norms are rounded, too
        top = scores.amax(dim=1).float()
        lowest = top - ROUNDING * top.abs() - 2 * error
        return (lowest - 2 * ROUNDING * lowest.abs()).bfloat16()

    def _settled(self, exact: Tensor, rows: Tensor, words: Tensor) -> Tensor | None:
        """``[n]`` words of the highest float32 logits among ``words [k]`` of ``rows [k]``, of which every row has one; none where
        a sum in float32 could make another one highest."""
        own = torch.cat([column[words] for column in self._columns], dim=1).double()
        parts = own * exact[rows].double()  # exactly
        logits, margin = parts.sum(dim=1), (self._width + 1) * FLOAT32 * parts.abs().sum(dim=1)
        least = logits.new_full((len(exact),), -torch.inf)
        surely = least.scatter_reduce(0, rows, logits - margin, "amax")
        near = logits + margin >= surely[rows]
        return words[near] if int(near.sum()) == len(exact) else None


class KeptShortlist:
    """The shortlist of a model's output embedding, which is made again when the weights have changed."""

    def __init__(self) -> None:
        self._made: tuple[Weights, Shortlist] | None = None

    def of(self, head: Any, plain: tuple[Tensor, Tensor | None]) -> Shortlist:
        """The shortlist.

        Args:
            head: the module of the output embedding.
            plain: its ``[V, D]`` weights and its bias.
        """
        weights: Iterator[Tensor] = head.parameters()
        if self._made is None or not self._made[0].hold(weights):
            self._made = (Weights.of(head.parameters()), Shortlist(*plain))
        return self._made[1]
