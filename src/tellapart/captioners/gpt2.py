"""GPT-2 with cross-attention, read by its parts: one word per caption and call, or whole captions at once.

Captions of an image share its keys and values, which are never copied for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

from tellapart.captioners.fused import FastConv1D
from tellapart.captioners.steps import Steps
from tellapart.products import added, gelu, product

Affine = Callable[[Tensor], Tensor]


def _affine(module: Any) -> Affine:
    """``module`` on ``[n, D]``: one operation where it is a plain ``Conv1D``, else as adapters and quantisation have it."""
    if type(module) is not FastConv1D:
        return module
    weight, bias = module.weight.t(), module.bias
    return lambda rows: product(rows, weight, bias)


def _added(module: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The sum of ``[n, D]`` and ``module`` on ``[n, D']``."""
    if type(module) is not FastConv1D:
        return lambda to, rows: to + module(rows)
    weight, bias = module.weight.t(), module.bias
    return lambda to, rows: added(to, rows, weight, bias)


def _activated(module: Any, act: nn.Module) -> Affine:
    """``act`` of ``module`` on ``[n, D]``."""
    if type(module) is not FastConv1D or type(act) is not nn.GELU or act.approximate != "tanh":
        return lambda rows: act(module(rows))
    weight, bias = module.weight.t(), module.bias
    return lambda rows: gelu(rows, weight, bias)


def _normed(module: nn.LayerNorm) -> Affine:
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda rows: torch.layer_norm(rows, shape, weight, bias, eps)


class _Block:
    """The parts of a ``GPT2Block`` in eval mode, on rows ``[n, D]``."""

    def __init__(self, block: Any) -> None:
        attention, cross, mlp = block.attn, block.crossattention, block.mlp
        self.scales = attention.scaling, cross.scaling
        self.word_norm, self.word_in, self.word_out = (
            _normed(block.ln_1),
            _affine(attention.c_attn),
            _added(attention.c_proj),
        )
        self.image_norm, self.image_in = _normed(block.ln_cross_attn), _affine(cross.q_attn)
        self.image_out = _added(cross.c_proj)
        self.norm, self.widen, self.narrow = _normed(block.ln_2), _activated(mlp.c_fc, mlp.act), _added(mlp.c_proj)

    def read(self, hidden: Tensor, attend_words: Affine, attend_image: Affine) -> Tensor:
        """``hidden`` after the block.

        Args:
            hidden: ``[n, D]``.
            attend_words: ``[n, 3 D]`` queries, keys and values -> ``[n, D]``.
            attend_image: ``[n, D]`` queries -> ``[n, D]``.
        """
        hidden = self.word_out(hidden, attend_words(self.word_in(self.word_norm(hidden))))
        hidden = self.image_out(hidden, attend_image(self.image_in(self.image_norm(hidden))))
        return self.narrow(hidden, self.widen(self.norm(hidden)))


class _Slots:
    """Rows ``[n, D]`` laid out as ``[groups, size, D]``, and back; a group may have fewer than ``size``.

    Args:
        group: ``[n]``, the group of each row.
        place: ``[n]``, its place in the group.
        groups: how many there are.
        size: rows of the largest.
    """

    def __init__(self, group: Tensor, place: Tensor, groups: int, size: int) -> None:
        self.shape = groups, size
        # where rows fill every slot in order, nothing has to move
        self._slot = group * size + place if len(group) < groups * size or (group.diff() < 0).any() else None

    def spread(self, rows: Tensor, heads: int) -> Tensor:
        """``[groups, heads, size, d]``, zero where no row is."""
        if self._slot is not None:
            rows = rows.new_zeros(self.shape[0] * self.shape[1], rows.shape[1]).index_copy(0, self._slot, rows)
        return rows.view(*self.shape, heads, -1).transpose(1, 2)

    def gather(self, spread: Tensor) -> Tensor:
        """The rows of ``[groups, heads, size, d]``."""
        rows = spread.transpose(1, 2).reshape(self.shape[0] * self.shape[1], -1)
        return rows if self._slot is None else rows[self._slot]


def _by_image(image: Tensor, images: int) -> _Slots:
    """Rows ``[n]`` of images in any order, those of an image in their own order."""
    order = image.argsort(stable=True)
    counts = torch.bincount(image, minlength=images)
    begins = counts.cumsum(0) - counts
    place = torch.empty_like(image)
    place[order] = torch.arange(len(image), device=image.device) - begins[image[order]]
    return _Slots(image, place, images, int(counts.max()))


def read_captions(
    transformer: Any, cache: Any, image_mask: Tensor | None, image: Tensor, tokens: Tensor, mask: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """States after every word that another follows, of all captions in one pass, with gradients.

    Linear layers see the real words only, whatever the captions' lengths, and an image's keys and values are read once for
    all of its words.

    Args:
        transformer: the ``GPT2Model``; in eval mode.
        cache: ``EncoderDecoderCache`` with the start tokens of B images and their states.
        image_mask: ``[B, P]`` bool of real image states, or none.
        image: ``[N]``, the image of each caption.
        tokens: ``[N, T]`` caption tokens.
        mask: ``[N, T]`` bool, a run of true from the left.

    Returns:
        ``[M, D]`` states, and the (row, column) of the word after each.
    """
    own, seen = cache.self_attention_cache.layers, cache.cross_attention_cache.layers
    row, column = mask[:, 1:].nonzero(as_tuple=True)
    start, longest = cache.get_seq_length(), int(column.max()) + 1
    words, images = _Slots(row, column, len(tokens), longest), _by_image(image[row], len(seen[0].keys))
    before = torch.ones(longest, start + longest, dtype=torch.bool, device=tokens.device).tril(start)
    allowed = None if image_mask is None else image_mask.bool()[:, None, None]
    hidden = transformer.wte(tokens[row, column]) + transformer.wpe.weight[start + column]

    def attend_words(begun: tuple[Tensor, Tensor], scale: float, rows: Tensor) -> Tensor:
        heads = begun[0].shape[1]
        query, *rest = words.spread(rows, 3 * heads).split(heads, dim=1)
        key, value = (torch.cat([first[image], more], dim=2) for first, more in zip(begun, rest, strict=True))
        return words.gather(attend(query, key, value, attn_mask=before, scale=scale))

    def attend_image(image: tuple[Tensor, Tensor], scale: float, rows: Tensor) -> Tensor:
        key, value = image
        return images.gather(attend(images.spread(rows, key.shape[1]), key, value, attn_mask=allowed, scale=scale))

    for number, block in enumerate(map(_Block, transformer.h)):
        begun, shown = ((layers[number].keys, layers[number].values) for layers in (own, seen))
        hidden = block.read(
            hidden, partial(attend_words, begun, block.scales[0]), partial(attend_image, shown, block.scales[1])
        )
    return transformer.ln_f(hidden), (row, column + 1)


@dataclass
class _Remembered:
    """What a block remembers.

    Args:
        words: keys and values of start tokens and words: ``[n, 2, heads, length, d]``, or of beams
            ``[B, 2, heads, start + words * beams, d]``.
        image: ``([B, heads, P, d], [B, heads, P, d])`` keys and values, shared by an image's captions.
    """

    words: Tensor
    image: tuple[Tensor, Tensor]


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
        self._mask = None if mask is None else mask.bool()[:, None, None]
        self._start = self._length = cache.get_seq_length()
        self._blocks = [_Block(block) for block in transformer.h]
        self._remembered = [self._remember(cache, number, longest) for number in range(len(self._blocks))]
        own = torch.eye(count, dtype=torch.bool, device=first.device)
        self._own = own[:, None].expand(len(first), -1, -1, -1)  # a beam's own word of a step, among those of its image
        self._ancestors = self._own[:, :, :0]
        self._images = _by_image(self.image, len(first))

    def _remember(self, cache: Any, number: int, longest: int) -> _Remembered:
        own, seen = cache.self_attention_cache.layers[number], cache.cross_attention_cache.layers[number]
        start = torch.stack([own.keys, own.values], dim=1)
        start = start if self._beams else start[self.image]
        room = longest * self._count if self._beams else longest
        words = start.new_empty(*start.shape[:3], self._start + room, start.shape[4])
        words[:, :, :, : self._start] = start
        return _Remembered(words, (seen.keys.contiguous(), seen.values.contiguous()))

    def read(self, words: Tensor) -> Tensor:
        """The words' embeddings through every block."""
        transformer = self._transformer
        step = self._count if self._beams else 1
        hidden = transformer.wte(words) + transformer.wpe.weight[self._start + (self._length - self._start) // step]
        before = self._seen_by_beams() if self._beams else None
        self._length += step
        for block, memory in zip(self._blocks, self._remembered, strict=True):
            hidden = block.read(
                hidden,
                partial(self._attend_words, memory.words, step, before, block.scales[0]),
                partial(self._attend_image, memory.image, block.scales[1]),
            )
        return transformer.ln_f(hidden)

    def _seen_by_beams(self) -> Tensor:
        """``[B, 1, beams, start + words * beams]`` bool: the start tokens, and the words of each beam's own caption."""
        self._ancestors = torch.cat([self._ancestors, self._own], dim=2)
        start = self._ancestors.new_ones(*self._ancestors.shape[:2], self._start)
        return torch.cat([start, self._ancestors.flatten(2)], dim=2)[:, None]

    def _attend_words(self, words: Tensor, step: int, seen: Tensor | None, scale: float, rows: Tensor) -> Tensor:
        end, width = self._length, rows.shape[1] // 3
        split = rows.view(len(words), step, 3, words.shape[2], -1).permute(0, 2, 3, 1, 4)
        words[:, :, :, end - step : end] = split[:, 1:]
        keys, values = words[:, :, :, :end].unbind(1)
        found = attend(split[:, 0], keys, values, attn_mask=seen, scale=scale)
        return found.transpose(1, 2).reshape(-1, width)

    def _attend_image(self, image: tuple[Tensor, Tensor], scale: float, rows: Tensor) -> Tensor:
        keys, values = image
        found = attend(self._images.spread(rows, keys.shape[1]), keys, values, attn_mask=self._mask, scale=scale)
        return self._images.gather(found)

    def keep(self, rows: Tensor) -> None:
        """What is left moves together."""
        before = self.image.unique_consecutive()
        images, group = self.image[rows].unique_consecutive(return_inverse=True)
        here = torch.searchsorted(before, images)
        self.image = self.image[rows]
        self._images = _by_image(group, len(images))
        moved = here if self._beams else rows
        for memory in self._remembered:
            kept = memory.words
            memory.words = kept.new_empty(len(moved), *kept.shape[1:])
            memory.words[:, :, :, : self._length] = kept[:, :, :, : self._length].index_select(0, moved)
            if len(images) < len(before):
                memory.image = (memory.image[0][here], memory.image[1][here])
        if len(images) < len(before):
            self._mask = None if self._mask is None else self._mask[here]
            self._own, self._ancestors = self._own[here], self._ancestors[here]

    def follow(self, parent: Tensor) -> None:
        """Each beam takes over which words are its parent's."""
        within = parent.view(-1, self._count) % self._count
        index = within[:, :, None, None].expand(-1, -1, *self._ancestors.shape[2:])
        self._ancestors = self._ancestors.gather(1, index)
