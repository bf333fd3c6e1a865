"""Caches whose rows can be chosen, to share an image's prefix and to drop captions that ended; and caches kept as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import DynamicLayer, EncoderDecoderCache


def _layer_rows(layer: Any, index: Tensor) -> Any:
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


class PiecewiseLayer(DynamicLayer):
    """Keys and values kept as they came and joined for each reader.

    A layer of transformers keeps them joined: the caches that T steps leave behind then hold every word up to T times, and the
    prefix T times. Here they share what came before.

    Args:
        layer: what to go on from; it has been filled.
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
