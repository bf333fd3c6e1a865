"""What one model family does differently, and everything that families with cross-attention have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationConfig

from tellapart.captioners.base import Encoded
from tellapart.errors import UsageError


class Family(ABC):
    """A loaded model, read as "image states, then hidden states of caption tokens, then logits".

    This is all a new architecture has to supply; drawing, scoring, adapters and saving are written on top of it. A
    family holds its model without owning it (it is no ``nn.Module``).

    Args:
        model: the loaded model.
        tokenizer: its tokenizer, asked only for ids that the model's configuration does not name.

    Attributes:
        start: ids the decoder reads before a caption's first token.
        eos: ids that end a caption; the first is the one appended to human captions.
        pad: id that fills rows after their end; may equal an EOS id.

    Raises:
        UsageError: the configuration lacks a token id, or the architecture is one this family cannot read.
    """

    lora_targets: ClassVar[str]
    """Regular expression of the text side's projections, matched against full module names."""
    never_used: ClassVar[str]
    """Regular expression of the parameters that no caption loss reaches, matched against the start of their names."""

    start: list[int]
    eos: list[int]
    pad: int

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.start, self.eos, self.pad = self.special_tokens()
        self.neutralise()

    @abstractmethod
    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """``(start, eos, pad)`` ids of this model."""

    @abstractmethod
    def neutralise(self) -> None:
        """Replace the checkpoint's decoding defaults (penalties, forced tokens), which would leak into beam search."""

    @property
    @abstractmethod
    def vision(self) -> nn.Module:
        """The image tower: what ``train="decoder"`` leaves frozen."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Width of the logits."""

    @abstractmethod
    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The image tower's output; nothing that belongs to the text side may be applied yet."""

    @abstractmethod
    def new_cache(self) -> Cache:
        """An empty cache."""

    @abstractmethod
    def prefix(self, encoded: Encoded, cache: Cache) -> Tensor:
        """``[B, D]``: hidden states that predict the first caption token of every image; fills ``cache``."""

    @abstractmethod
    def decode(self, tokens: Tensor, encoded: Encoded, image: Tensor, cache: Cache | None) -> Tensor:
        """``[n, t, D]`` hidden states at ``tokens``.

        Args:
            tokens: ``[n, t]`` decoder input, following on from ``cache`` if there is one.
            encoded: states of B images.
            image: ``[n]``, the image of each row.
            cache: keys and values of what came before, n rows; extended in place.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., V]`` raw logits of hidden states ``[..., D]``."""

    @abstractmethod
    def beam_search(self, encoded: Encoded, config: GenerationConfig) -> Tensor:
        """``[B * num_return_sequences, T]`` caption tokens by the model's own ``generate``, start tokens removed."""

    def teacher_forced(self, tokens: Tensor, encoded: Encoded, image: Tensor) -> Tensor:
        """``[n, T, D]``: the hidden states that predict each of ``tokens [n, T]``, in one pass without a cache."""
        start = tokens.new_tensor(self.start).expand(len(tokens), -1)
        hidden = self.decode(torch.cat([start, tokens[:, :-1]], dim=1), encoded, image, None)
        return hidden[:, len(self.start) - 1 :]


class CrossDecoder(Family):
    """A decoder that reads the image through cross-attention and starts from one or more start tokens."""

    def new_cache(self) -> Cache:
        """Self-attention keys and values, and those of the image, which never grow."""
        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    def prefix(self, encoded: Encoded, cache: Cache) -> Tensor:
        """The start tokens, once an image: their keys and values and the image's are shared by all its captions."""
        images = torch.arange(len(encoded.states), device=encoded.states.device)
        start = images.new_tensor(self.start).expand(len(images), -1)
        return self.decode(start, encoded, images, cache)[:, -1]

    def decode(self, tokens: Tensor, encoded: Encoded, image: Tensor, cache: Cache | None) -> Tensor:
        """Hidden states from the text decoder, attending to each row's image."""
        if isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(0):
            # The image's keys and values are cached: the states are only looked at for their shape.
            states = encoded.states[:1].expand(len(tokens), -1, -1)
        else:
            states = self.project(encoded.states)[image]
        mask = None if encoded.mask is None else encoded.mask[image]
        return self.text(tokens, states, mask, cache)

    def project(self, states: Tensor) -> Tensor:
        """Image states as the cross-attention takes them; belongs to the text side, so it trains with it."""
        return states

    @abstractmethod
    def text(self, tokens: Tensor, states: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """The text decoder's last hidden states ``[n, t, D]``."""


def first_given(what: str, candidates: Iterable[Any]) -> Any:
    """The first candidate that is not None.

    Raises:
        UsageError: all of them are.
    """
    for candidate in candidates:
        if candidate is not None:
            return candidate
    raise UsageError(
        f"the model's configuration and tokenizer name no {what} token: set {what}_token_id in config.json."
    )


def as_list(ids: int | list[int]) -> list[int]:
    """Configurations name one id or a list of them."""
    return [ids] if isinstance(ids, int) else list(ids)
