"""Attention in the image towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: of all images, or windows of them, at once."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionAttention
from transformers.models.qwen2_vl.modeling_qwen2_vl import VisionAttention, apply_rotary_pos_emb_vision
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionAttention

Groups = list[tuple[Tensor | None, int]]
"""Rows of parts of the same length, none where these are all rows, and that length."""


class Parts:
    """Which parts of a batch have the same length, asked by every layer of a tower for the same one or two divisions."""

    def __init__(self) -> None:
        self._known: list[tuple[weakref.ref[Tensor], Groups]] = []

    def __reduce__(self) -> tuple[type[Parts], tuple[()]]:
        """Copies know nothing: a division is of one batch."""
        return Parts, ()

    def of(self, ends: Tensor) -> Groups:
        """The parts that end at rows ``ends``, of which the first is 0, in groups of one length."""
        for division, groups in self._known:
            if division() is ends:
                return groups
        groups = by_length(ends)
        self._known = [*self._known[-1:], (weakref.ref(ends), groups)]
        return groups


def by_length(ends: Tensor) -> Groups:
    """As ``Parts.of``."""
    lengths = ends.diff().long()
    kinds = sorted(set(lengths.tolist()))
    if len(kinds) == 1:
        return [(None, kinds[0])]
    return [
        ((ends[:-1][lengths == kind, None] + torch.arange(kind, device=ends.device)).flatten(), kind)
        for kind in kinds
        if kind > 0
    ]


class _Together(nn.Module):
    """The attention of one of the three towers, whose own calls torch's part by part and puts the results together.

    An image of 448 x 448 pixels has 16 windows in Qwen2.5-VL.
    """

    parts: Parts

    def forward(
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        **options: Any,
    ) -> Tensor:
        """``[n, D]`` of all rows, each of which sees those of its part."""
        own: Any = self
        if own.config._attn_implementation != "sdpa":
            return super().forward(hidden_states, cu_seqlens, position_embeddings=position_embeddings, **options)
        query, key, value = own.qkv(hidden_states).unflatten(1, (3, own.num_heads, -1)).unbind(1)
        query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
        found = value
        for rows, length in self.parts.of(cu_seqlens):
            part = (read if rows is None else read[rows] for read in (query, key, value))
            queries, keys, values = (read.unflatten(0, (-1, length)).transpose(1, 2) for read in part)
            seen = attend(queries, keys, values, scale=own.scaling).transpose(1, 2).flatten(0, 1)
            found = seen if rows is None else found.index_copy(0, rows, seen)
        return own.proj(found.flatten(1))


class _Qwen2(_Together, VisionAttention):
    """Qwen2-VL's."""


class _Qwen25(_Together, Qwen2_5_VLVisionAttention):
    """Qwen2.5-VL's."""


class _Qwen3(_Together, Qwen3VLVisionAttention):
    """Qwen3-VL's."""


TOGETHER: dict[type[nn.Module], type[_Together]] = {
    VisionAttention: _Qwen2,
    Qwen2_5_VLVisionAttention: _Qwen25,
    Qwen3VLVisionAttention: _Qwen3,
}


def attend_together(tower: nn.Module) -> None:
    """Let all parts of a length be attended to at once, in place: modules get another class and keep their parameters.

    Values differ in their last bits from those of attending part by part.

    Args:
        tower: of a model of one of the three families; other attention stays as it is.
    """
    parts = Parts()
    for module in tower.modules():
        if (kind := TOGETHER.get(type(module))) is not None:
            module.__class__ = kind
            module.parts = parts  # type: ignore[assignment]  # an object, not a module
