"""Attention of the words that are read in a step to all before them: on a CPU by two products for all captions and heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from tellapart.captioners.modes import plainly

SMALLEST = 400
"""Numbers of queries, columns and width multiplied from which torch hands products of many small matrices to its library of
products (``aten/src/ATen/native/LinearAlgebra.cpp``). Below it multiplies number by number, which took twice as long as its
attention."""

FULL = 16
"""Columns from which torch's softmax computes several numbers at once with AVX-512: 960 rows of 12 columns took 0.2 ms, and of 16
columns 0.02."""


def by_products(rows: Tensor) -> bool:
    """Whether attention of ``rows`` may be computed by products: float32 where operations run ``plainly``."""
    return rows.dtype is torch.float32 and plainly(rows)


def attend_in_step(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """``[groups, H, size, d]``, as ``torch.nn.functional.scaled_dot_product_attention`` gives it.

    On a CPU that calls the library of products for each caption and head. With few queries the calls take most of the time: on an
    EPYC 240 captions with 4 heads of width 32 and 20 words took 0.58 ms, and 0.32 ms by two products of all of them.

    Args:
        query: ``[groups, H, size, d]``.
        keys: ``[groups, H, columns, d]``; quickest where groups and heads lie as one dimension.
        values: the same.
        seen: ``[groups, 1, size or 1, columns]``, 0 where a row of queries sees a column and minus infinity elsewhere, or bool;
            none: everything.
        scale: of the products of queries and keys.

    Example::

        one = torch.ones(1, 1, 1, 8)
        attend_in_step(one, one, one, None, 1.0)  # ones
    """
    groups, heads, size, width = query.shape
    columns = keys.shape[2]
    quick = by_products(query) and size * columns * width >= SMALLEST
    if not quick or (seen is not None and seen.dtype is torch.bool):
        return scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scale)
    rows, turned = query.reshape(-1, size, width), keys.flatten(0, 1).transpose(1, 2)
    if seen is None:
        scores = query.new_empty(groups * heads, size, columns).baddbmm_(rows, turned, beta=0, alpha=scale)
    else:
        scores = seen.expand(groups, heads, size, columns).clone(memory_format=torch.contiguous_format).flatten(0, 1)
        scores.baddbmm_(rows, turned, alpha=scale)
    return torch.bmm(softmax(scores), values.flatten(0, 1)).view(query.shape)


def softmax(scores: Tensor) -> Tensor:
    """Of the last dimension, with columns of minus infinity after fewer than ``FULL``.

    Args:
        scores: ``[..., columns]``.
    """
    columns = scores.shape[-1]
    if columns >= FULL:
        return scores.softmax(dim=-1)
    return pad(scores, (0, FULL - columns), value=-torch.inf).softmax(dim=-1)[..., :columns]
