"""Caches whose rows can be chosen, to share an image's prefix and to drop captions that ended; and caches kept as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import DynamicLayer, EncoderDecoderCache


def _layer_rows(layer: Any, index: Tensor) -> Any:
    if isinstance(layer, WrittenLayer):
        return layer.select(index)
    chosen = copy.copy(layer)
    if layer.is_initialized:
        chosen.keys, chosen.values = layer.keys.index_select(0, index), layer.values.index_select(0, index)
    return chosen


@runtime_checkable
class Selectable(Protocol):
    """A cache of another kind, such as the state of an LSTM, that chooses its rows itself."""

    def select(self, index: Tensor) -> Any:
        """A cache of the rows at ``index``."""
        ...


def select_rows(cache: Any, index: Tensor) -> Any:
    """A cache of the rows at ``index`` (repeats allowed); ``cache`` stays as it is, gradients flow back to it."""
    if isinstance(cache, Selectable):
        return cache.select(index)
    return _with_layers(cache, lambda layer: _layer_rows(layer, index))


def fork(cache: Any) -> Any:
    """A cache to extend while ``cache`` stays as it is; extending replaces tensors, so until then the two share theirs."""
    return copy.copy(cache) if isinstance(cache, Selectable) else _with_layers(cache, copy.copy)


class WrittenLayer(DynamicLayer):
    """Keys and values that are written in place, where a layer of transformers copies all of them for every word.

    Args:
        layer: the prefix, which has been filled.
        rows: ``[n]``, the row of ``layer`` that each row begins with.
        longest: most words that may follow.
    """

    def __init__(self, layer: DynamicLayer, rows: Tensor, longest: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = layer.dtype, layer.device, layer.is_initialized
        self.prefix = self.length = layer.keys.shape[-2]
        room = longest + self.prefix
        self._kept = tuple(_roomy(part, rows, self.length, room) for part in (layer.keys, layer.values))
        self._show()

    def _show(self) -> None:
        self.keys, self.values = (part[:, :, : self.length] for part in self._kept)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """All keys and values, the new ones last."""
        end = self.length + key_states.shape[-2]
        for kept, new in zip(self._kept, (key_states, value_states), strict=True):
            kept[:, :, self.length : end] = new
        self.length = end
        self._show()
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Words and prefix so far."""
        return self.length

    def select(self, index: Tensor) -> WrittenLayer:
        """A layer of the rows at ``index``, with the same capacity."""
        chosen = copy.copy(self)
        room = self._kept[0].shape[-2]
        chosen._kept = tuple(_roomy(part[:, :, : self.length], index, self.length, room) for part in self._kept)
        chosen._show()
        return chosen

    def follow(self, parent: Tensor, moved: Tensor) -> None:
        """Let the rows ``moved`` continue the words of ``parent``, rows with the same prefix."""
        for part in self._kept:
            words = part[:, :, self.prefix : self.length]
            words[moved] = words[parent]


def _roomy(part: Tensor, rows: Tensor, length: int, room: int) -> Tensor:
    kept = part.new_empty(len(rows), part.shape[1], room, part.shape[3])
    kept[:, :, :length] = part.index_select(0, rows)
    return kept


def written(cache: Any, rows: Tensor, longest: int) -> Any:
    """A cache whose row i begins as row ``rows[i]`` of ``cache``, written in place by words that follow.

    So a prefix of an image and a prompt is not copied for every word. Where the image is cross-attended to, the prefix is a
    few words, and copying them is quicker than reading rows that lie apart: that cache, and one with layers of another kind,
    stays of its kind.

    Args:
        cache: the prefix.
        rows: ``[n]``.
        longest: most words that may follow.
    """
    if isinstance(cache, Selectable | EncoderDecoderCache) or any(
        type(part) is not DynamicLayer for part in cache.layers
    ):
        return select_rows(cache, rows)
    return _with_layers(cache, lambda layer: WrittenLayer(layer, rows, longest) if layer.is_initialized else layer)


def follow(cache: Any, parent: Tensor) -> Any:
    """A cache in which row i continues the words of row ``parent[i]``, a row of the same image; ``cache`` may be changed.

    What an image cross-attended to gives stays where it is.
    """
    if isinstance(cache, EncoderDecoderCache):
        cache.self_attention_cache = follow(cache.self_attention_cache, parent)
        return cache
    if isinstance(cache, Selectable) or not all(isinstance(part, WrittenLayer) for part in cache.layers):
        return select_rows(cache, parent)
    own = torch.arange(len(parent), device=parent.device)
    moved = (
        (parent != own).nonzero().squeeze(1) if parent.device.type == "cpu" else own
    )  # elsewhere counting would wait
    for layer in cache.layers:
        layer.follow(parent[moved], moved)
    return cache


class PiecewiseLayer(DynamicLayer):
    """Keys and values kept as they came and joined for each reader.

    A layer of transformers keeps them joined: the caches that T steps leave behind then hold every word up to T times, and the
    prefix T times. Here they share what came before.

    Args:
        layer: the filled cache to continue from.
    """

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = layer.dtype, layer.device, layer.is_initialized
        self.pieces: tuple[tuple[Tensor, Tensor], ...] = ((layer.keys, layer.values),)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """All keys and values, the new ones last."""
        # Copies: what arrives is often a view of queries, keys and values in one.
        self.pieces = (*self.pieces, (key_states.clone(), value_states.clone()))
        keys, values = zip(*self.pieces, strict=True)
        return torch.cat(keys, dim=-2), torch.cat(values, dim=-2)

    def get_seq_length(self) -> int:
        """Words and prefix so far."""
        return sum(keys.shape[-2] for keys, _ in self.pieces)


def in_pieces(cache: Any) -> Any:
    """``cache`` with what is added from now on kept in pieces; the image's keys and values never grow and stay as they are."""
    if isinstance(cache, Selectable):
        return cache
    if not isinstance(cache, EncoderDecoderCache):
        return _with_layers(cache, PiecewiseLayer)
    grown = fork(cache)
    grown.self_attention_cache = in_pieces(cache.self_attention_cache)
    return grown


def _with_layers(cache: Any, change: Callable[[Any], Any]) -> Any:
    changed = copy.copy(cache)
    if isinstance(cache, EncoderDecoderCache):
        changed.self_attention_cache = _with_layers(cache.self_attention_cache, change)
        changed.cross_attention_cache = _with_layers(cache.cross_attention_cache, change)
        changed.is_updated = dict(cache.is_updated)
    else:
        changed.layers = [change(layer) for layer in cache.layers]
    return changed
