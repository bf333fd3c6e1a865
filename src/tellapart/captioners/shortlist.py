"""The likeliest next word over a large vocabulary, found in bfloat16 and settled in float32.

Greedy search needs one number of each row of logits: the place of the highest. Computing all of them reads the whole output
embedding at each step, 77 MB for a GPT-2 of width 384, while the layers before it read less. In bfloat16 it is half as much,
and processors with instructions for it multiply several times as fast. The error of such a logit has a bound, so a few words
remain that may have the highest; their logits in float32 decide. Where many remain, or float32's own rounding could decide
between two, all logits are computed as without a shortlist. So the words are always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tellapart.captioners.unchanged import Weights
from tellapart.products import multiplies_bfloat16

LEAST = 2**22
"""Weights of an output embedding from which a shortlist is quicker: smaller ones stay in a processor's cache."""

BFLOAT16 = 2.0**-8
"""Unit roundoff: rounding changes a number by at most this share of the rounded one."""

FLOAT32 = 1.01 * 2.0**-24
"""Unit roundoff of float32, and a little more: a sum of n products, in whatever order, differs from the exact one by at most n
times this share of the sum of their sizes (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1)."""

TINY = 2.0**-120
"""More than what is lost of a product whose factors or result are below float32's normal numbers, which may count as 0."""

FEW = 32
"""Words of a row that may have the highest logit, on average, up to which they are looked at one by one."""

TRIED = 8
"""Steps after which a shortlist is given up that found no words at more than a quarter of them."""

ALIGNED = 32
"""Columns of bfloat16 that processors multiply together."""

SAMPLED = 4093
"""Numbers of the output embedding that tell whether it changed: a prime number, so that they do not all lie in one column."""

ROWS = 4096
"""Rows of the output embedding that are measured at a time."""


def quick(weight: Tensor) -> bool:
    """Whether a shortlist of an output embedding ``[V, D]`` is quicker than all its logits, and settles as they would."""
    return (
        type(weight) in (Tensor, torch.nn.Parameter)  # not a shard
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= LEAST
        and not weight.is_inference()  # torch counts no changes of such
        and multiplies_bfloat16()
        and _multiplies_exactly()
    )


def _multiplies_exactly() -> bool:
    """Whether products of float32 are computed in float32, as far as torch's switches say."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch refuses to tell once a program has set fp32_precision, which came later
        return False


class Shortlist:
    """Finds the next word of greedy search, with the output embedding as it is now.

    Args:
        weight: ``[V, D']`` of the output embedding, float32.
        bias: ``[V]``, or none.
        before: states ``[n, D]`` -> what the output embedding reads of them, ``[n, D']``.

    Example::

        shortlist = Shortlist(head.weight, head.bias)
        words = shortlist.highest(states, lambda scores: scores)  # states [n, D] -> [n], or none
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(
        self, weight: Tensor, bias: Tensor | None, before: Callable[[Tensor], Tensor] = lambda states: states
    ) -> None:
        # A bias is a further column, which a 1 is read for: added afterwards, it would be rounded apart.
        columns = [weight.detach()] if bias is None else [weight.detach(), bias.detach()[:, None]]
        self._columns, self._has_bias, self._before = columns, bias is not None, before
        self._width = sum(column.shape[1] for column in columns)
        padded = self._width if bias is None else -(-self._width // ALIGNED) * ALIGNED
        self._rounded = torch.zeros((len(weight), padded), dtype=torch.bfloat16)
        lost, longest = [], []
        for begin in range(0, len(weight), ROWS):
            exact = torch.cat([column[begin : begin + ROWS] for column in columns], dim=1)
            rounded = self._rounded[begin : begin + ROWS, : self._width].copy_(exact).float()
            lost.append(_length(exact - rounded).max())
            longest.append(_length(rounded).max())
        self._lost, self._longest = torch.stack(lost).max(), torch.stack(longest).max()
        self._tried = self._missed = 0

    @property
    def pays(self) -> bool:
        """Whether it found the words of most steps."""
        return self._tried < TRIED or 4 * self._missed <= self._tried

    @torch.no_grad()
    def highest(self, states: Tensor, restrict: Callable[[Tensor], Tensor]) -> Tensor | None:
        """``[n]`` ids of the highest logits, the first of equals; none where only all float32 logits can tell.

        Args:
            states: ``[n, D]``.
            restrict: makes the scores ``[n, V]`` of words that must not follow ``-inf``.
        """
        with torch.autocast(states.device.type, enabled=False):
            found = self._found(self._before(states.float()), restrict)
        self._tried, self._missed = self._tried + 1, self._missed + (found is None)
        return found

    def _found(self, states: Tensor, restrict: Callable[[Tensor], Tensor]) -> Tensor | None:
        exact = functional.pad(states, (0, 1), value=1.0) if self._has_bias else states
        rounded = functional.pad(exact, (0, self._rounded.shape[1] - self._width)).bfloat16()
        scores = restrict(functional.linear(rounded, self._rounded))
        lowest = self._lowest(scores, exact, rounded[:, : self._width].float())
        if not lowest.isfinite().all():
            return None
        rows, words = (scores >= lowest[:, None]).nonzero(as_tuple=True)
        return None if len(words) > FEW * len(states) else self._settled(exact, rows, words)

    def _lowest(self, scores: Tensor, exact: Tensor, rounded: Tensor) -> Tensor:
        """``[n]`` bfloat16: whatever has the highest logit has a score of at least this.

        By the inequality of Cauchy and Schwarz a score, before it is rounded, differs from the logit by at most the state times
        what rounding took from a row of the embedding, plus what rounding took from the state times the longest row, plus the
        rounding of sums in float32, here and of the logits. The score of the highest logit is thus at most twice that below the
        highest score before rounding. Rounding keeps the order of numbers, so what is rounded alike can be compared.
        """
        length, further = _length(exact), _length(rounded) * self._longest
        error = length * self._lost + _length(exact - rounded) * self._longest
        error += 4 * (self._width + 1) * FLOAT32 * further + self._width * TINY * (1 + length + self._longest)
        top = scores.amax(dim=1).double()
        return (top - BFLOAT16 * top.abs() - 2 * error).float().bfloat16()

    def _settled(self, exact: Tensor, rows: Tensor, words: Tensor) -> Tensor | None:
        """``[n]`` words of the highest float32 logits among ``words [k]`` of ``rows [k]``, of which every row has one; none where
        a sum in float32 could make another one highest."""
        own = torch.cat([column[words] for column in self._columns], dim=1).double()
        parts = own * exact[rows].double()  # exactly
        logits, sizes = parts.sum(dim=1), parts.abs().sum(dim=1)
        margin = (self._width + 1) * FLOAT32 * sizes + self._width * TINY * (1 + _length(exact)[rows] + self._longest)
        least = logits.new_full((len(exact),), -torch.inf)
        surely = least.scatter_reduce(0, rows, logits - margin, "amax")
        near = logits + margin >= surely[rows]
        return words[near] if int(near.sum()) == len(exact) else None


def _length(rows: Tensor) -> Tensor:
    """Euclidean length of each row, float64: squares of small float32 numbers would be 0."""
    return rows.double().norm(dim=1)


class KeptShortlist:
    """The shortlist of a model's output embedding. It is built for the second batch that is drawn with the same weights.

    Building it takes as long as about ten steps save, so drawing one batch between two updates goes without. A copy of the model
    begins without one.
    """

    def __init__(self) -> None:
        self._seen: Weights | None = None
        self._made: Shortlist | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> KeptShortlist:
        return KeptShortlist()

    def of(
        self, head: Any, plain: tuple[Tensor, Tensor | None], before: Callable[[Tensor], Tensor] = lambda states: states
    ) -> Shortlist | None:
        """The shortlist for a batch of captions; none if these weights are new, or it does not pay.

        Args:
            head: the module of the output embedding.
            plain: its weights and bias, as for ``Shortlist``.
            before: as there.
        """
        if self._seen is None or not self._seen.hold(head.parameters()):
            self._seen, self._made = Weights.of(head.parameters(), sampled=SAMPLED), None
            return None
        if self._made is None:
            self._made = Shortlist(*plain, before)
        return self._made if self._made.pays else None
