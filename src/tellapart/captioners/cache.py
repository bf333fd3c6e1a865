"""Caches whose rows can be chosen: to share an image's prefix, and to drop captions that ended."""

from __future__ import annotations

import copy
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from transformers import EncoderDecoderCache


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
    chosen = copy.copy(cache)
    if isinstance(cache, EncoderDecoderCache):
        chosen.self_attention_cache = select_rows(cache.self_attention_cache, index)
        chosen.cross_attention_cache = select_rows(cache.cross_attention_cache, index)
        chosen.is_updated = dict(cache.is_updated)
    else:
        chosen.layers = [_layer_rows(layer, index) for layer in cache.layers]
    return chosen
