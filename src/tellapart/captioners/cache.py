"""Caches whose rows can be chosen, to share an image's prefix and to drop captions that ended; and caches kept as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import DynamicCache, DynamicLayer, EncoderDecoderCache


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


class FixedLayer(DynamicLayer):
    """Keys and values of a prefix and of as many words as may follow, all of which are given to whoever reads.

    Args:
        keys: ``[n, heads, columns, d]``.
        values: the same.
        place: ``[1]``, the column of the next word.
    """

    def __init__(self, keys: Tensor, values: Tensor, place: Tensor) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values, self._place = keys, values, place

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """All of them, with those of one more word."""
        # Under autocast the prefix may be of float32, where keys are turned, and values of words of bfloat16.
        self.keys.index_copy_(2, self._place, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self._place, value_states.to(self.values.dtype))
        return self.keys, self.values


class FixedCache(DynamicCache):
    """A prefix and words, whose tensors stay where they are and as large as they are.

    Attributes:
        prefix: columns of the prefix.
        place: ``[1]``, the column of the next word.
    """

    prefix: int
    place: Tensor

    @staticmethod
    def of(layers: list[Any], prefix: int, place: Tensor, change: Callable[[Tensor], Tensor]) -> FixedCache:
        """A cache of what ``change`` makes of the keys and of the values of ``layers``."""
        cache = FixedCache()
        cache.prefix, cache.place = prefix, place
        cache.layers = [FixedLayer(change(layer.keys), change(layer.values), place) for layer in layers]
        return cache

    @property
    def read(self) -> Tensor:
        """``[1]``, the words before the next one."""
        return self.place - self.prefix

    def seen(self, real: Tensor) -> Tensor:
        """``[n, 1, 1, columns]`` bool, what the next word sees, given which columns of the prefix are ``real [n, prefix]``."""
        columns = torch.arange(self.layers[0].keys.shape[2], device=real.device)
        known = torch.nn.functional.pad(real.bool(), (0, len(columns) - self.prefix), value=True)
        return (known & (columns <= self.place))[:, None, None]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of the prefix: how many words there are is known to the device only."""
        return self.prefix

    def follow(self, parent: Tensor) -> None:
        """Row i continues the words of row ``parent[i]``, one with the same prefix."""
        for layer in self.layers:
            for part in (layer.keys, layer.values):
                words = part[:, :, self.prefix :]
                words.copy_(words[parent])

    def select(self, index: Tensor) -> FixedCache:
        """A cache of the rows at ``index``, with memory of its own."""
        return FixedCache.of(self.layers, self.prefix, self.place.clone(), lambda part: part[index])


def can_be_fixed(cache: Any, config: Any) -> bool:
    """Whether ``fixed`` can make a cache of this one: its layers are transformers' usual ones, and see everything before.

    Args:
        cache: a filled one.
        config: of the language model.
    """
    usual = isinstance(cache, DynamicCache) and all(
        type(part) is DynamicLayer and part.is_initialized for part in cache.layers
    )
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return usual and all(kind == "full_attention" for kind in kinds)
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return usual and not any(windows)


def fixed(cache: Any, rows: Tensor, longest: int) -> FixedCache:
    """A cache whose row i begins as row ``rows[i]`` of ``cache``, which was filled, with room for ``longest`` words."""
    prefix = int(cache.get_seq_length())

    def roomy(part: Tensor) -> Tensor:
        # Finite numbers: what is hidden by a mask still takes part.
        return torch.nn.functional.pad(part[rows], (0, 0, 0, longest))

    return FixedCache.of(cache.layers, prefix, torch.full((1,), prefix, device=rows.device), roomy)


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
