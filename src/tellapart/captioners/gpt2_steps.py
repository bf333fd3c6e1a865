"""GPT-2 with cross-attention, one word per caption and call, over keys and values that are written in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from torch.nn.functional import scaled_dot_product_attention as attend
from transformers.pytorch_utils import Conv1D

from tellapart.captioners.steps import Steps

Affine = Callable[[Tensor], Tensor]


def _affine(module: Any) -> Affine:
    """``module`` on ``[n, D]``: one operation where it is a plain ``Conv1D``, else as adapters and quantisation have it."""
    if type(module) is not Conv1D:
        return module
    weight, bias = module.weight, module.bias
    return lambda rows: torch.addmm(bias, rows, weight)


def _normed(module: nn.LayerNorm) -> Affine:
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda rows: layer_norm(rows, shape, weight, bias, eps)


@dataclass
class _Layer:
    """The parts of a ``GPT2Block``, and what it remembers.

    Args:
        words: keys and values of start tokens and words: ``[n, 2, heads, length, d]``, or of beams
            ``[B, 2, heads, start + words * beams, d]``.
        image: ``([B, heads, P, d], [B, heads, P, d])`` keys and values, shared by an image's captions.
    """

    words: Tensor
    image: tuple[Tensor, Tensor]
    scales: tuple[float, float]
    word_norm: Affine
    word_in: Affine
    word_out: Affine
    image_norm: Affine
    image_in: Affine
    image_out: Affine
    norm: Affine
    widen: Affine
    act: Affine
    narrow: Affine


class Gpt2Steps(Steps):
    """The blocks of a GPT-2, called by their parts.

    Captions of an image share the image's keys and values, which are never copied for them. Beams are not reordered in
    memory: all beams of an image read the same keys, and a mask tells each which words are its own. Adapters and
    quantised layers are read through their modules.

    Args:
        transformer: the ``GPT2Model``; in eval mode.
        cache: ``EncoderDecoderCache`` with the start tokens of B images and their states.
        first: ``[B, D]`` states after the start tokens.
        mask: ``[B, P]`` bool of real image states, or none.
        count: rows per image.
        longest: most words of a caption.
        beams: whether the rows of an image are beams.
    """

    def __init__(
        self, transformer: Any, cache: Any, first: Tensor, mask: Tensor | None, *, count: int, longest: int, beams: bool
    ) -> None:
        self._transformer, self.first, self._count, self._beams = transformer, first, count, beams
        self.image = torch.arange(len(first), device=first.device).repeat_interleave(count)
        self._images = len(first)
        self._mask = None if mask is None else mask.bool()[:, None, None]
        self._slot: Tensor | None = None  # [n] place among images * count, once some rows are gone
        self._start = self._length = cache.get_seq_length()
        self._layers = [self._layer(block, number, cache, longest) for number, block in enumerate(transformer.h)]
        own = torch.eye(count, dtype=torch.bool, device=first.device)
        self._own = own[:, None].expand(self._images, -1, -1, -1)  # a row's own word of a step, among all of its image
        self._ancestors = self._own[:, :, :0]

    def _layer(self, block: Any, number: int, cache: Any, longest: int) -> _Layer:
        own, seen = cache.self_attention_cache.layers[number], cache.cross_attention_cache.layers[number]
        start = torch.stack([own.keys, own.values], dim=1)
        start = start if self._beams else start[self.image]
        room = longest * self._count if self._beams else longest
        words = start.new_empty(*start.shape[:3], self._start + room, start.shape[4])
        words[:, :, :, : self._start] = start
        attention, cross, mlp = block.attn, block.crossattention, block.mlp
        return _Layer(
            words,
            (seen.keys.contiguous(), seen.values.contiguous()),
            (attention.scaling, cross.scaling),
            _normed(block.ln_1),
            _affine(attention.c_attn),
            _affine(attention.c_proj),
            _normed(block.ln_cross_attn),
            _affine(cross.q_attn),
            _affine(cross.c_proj),
            _normed(block.ln_2),
            _affine(mlp.c_fc),
            mlp.act,
            _affine(mlp.c_proj),
        )

    def read(self, words: Tensor) -> Tensor:
        """The words' embeddings through every block."""
        transformer = self._transformer
        step = self._count if self._beams else 1
        hidden = transformer.wte(words) + transformer.wpe.weight[self._start + (self._length - self._start) // step]
        seen = self._seen_by_beams() if self._beams else None
        self._length += step
        for layer in self._layers:
            hidden = hidden + self._attend_words(layer, layer.word_norm(hidden), step, seen)
            hidden = hidden + self._attend_image(layer, layer.image_norm(hidden))
            hidden = hidden + layer.narrow(layer.act(layer.widen(layer.norm(hidden))))
        return transformer.ln_f(hidden)

    def _seen_by_beams(self) -> Tensor:
        """``[B, 1, beams, start + words * beams]`` bool: the start tokens, and the words of each beam's own caption."""
        self._ancestors = torch.cat([self._ancestors, self._own], dim=2)
        start = self._ancestors.new_ones(self._images, self._count, self._start)
        return torch.cat([start, self._ancestors.flatten(2)], dim=2)[:, None]

    def _attend_words(self, layer: _Layer, hidden: Tensor, step: int, seen: Tensor | None) -> Tensor:
        words, end = layer.words, self._length
        rows = layer.word_in(hidden).view(len(words), step, 3, words.shape[2], -1).permute(0, 2, 3, 1, 4)
        words[:, :, :, end - step : end] = rows[:, 1:]
        keys, values = words[:, :, :, :end].unbind(1)
        found = attend(rows[:, 0], keys, values, attn_mask=seen, scale=layer.scales[0])
        return layer.word_out(found.transpose(1, 2).reshape(hidden.shape))

    def _attend_image(self, layer: _Layer, hidden: Tensor) -> Tensor:
        """All captions of an image at once, so that its keys are read once."""
        query, slot, (keys, values) = layer.image_in(hidden), self._slot, layer.image
        if slot is not None:
            query = query.new_zeros(self._images * self._count, query.shape[1]).index_copy_(0, slot, query)
        query = query.view(self._images, self._count, keys.shape[1], -1).transpose(1, 2)
        found = attend(query, keys, values, attn_mask=self._mask, scale=layer.scales[1])
        found = found.transpose(1, 2).reshape(self._images * self._count, -1)
        return layer.image_out(found if slot is None else found[slot])

    def keep(self, rows: Tensor) -> None:
        """What is left moves together."""
        images, within = self.image[rows].unique_consecutive(return_inverse=True)
        first = torch.searchsorted(self.image, images)  # a row of each image that stays
        here = self._row_image(first)
        self.image = self.image[rows]
        counts = torch.bincount(within)
        count = int(counts.max())
        if not self._beams:
            begins = counts.cumsum(0) - counts
            self._slot = within * count + torch.arange(len(rows), device=rows.device) - begins[within]
            self._count = count
        moved, length = here if self._beams else rows, self._length
        for layer in self._layers:
            kept = layer.words
            layer.words = kept.new_empty(len(moved), *kept.shape[1:])
            layer.words[:, :, :, :length] = kept[:, :, :, :length].index_select(0, moved)
            if len(images) < self._images:
                layer.image = (layer.image[0][here], layer.image[1][here])
        if len(images) < self._images:
            self._mask = None if self._mask is None else self._mask[here]
            self._own, self._ancestors = self._own[here], self._ancestors[here]
            self._images = len(images)

    def _row_image(self, rows: Tensor) -> Tensor:
        """Places of the images of ``rows`` among those that are kept now."""
        return self.image.unique_consecutive(return_inverse=True)[1][rows]

    def follow(self, parent: Tensor) -> None:
        """Each beam takes over which words are its parent's."""
        within = parent.view(self._images, self._count) % self._count
        index = within[:, :, None, None].expand(-1, -1, *self._ancestors.shape[2:])
        self._ancestors = self._ancestors.gather(1, index)
