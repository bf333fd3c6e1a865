"""A decoder that reads one word of every caption per call, which is what greedy search, sampling and beam search share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from transformers import EncoderDecoderCache

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import select_rows

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family


class Steps(ABC):
    """Reads captions of B images, n rows in all, word after word.

    Attributes:
        first: ``[B, D]`` states that predict the first word of every image's captions.
        image: ``[n]``, the image of each row; rows of an image stand together, images in order.
    """

    first: Tensor
    image: Tensor

    @abstractmethod
    def read(self, words: Tensor) -> Tensor:
        """``[n, D]`` states that predict what follows ``words [n]``."""

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Continue with the rows at these places only, which must rise; of beams, all rows of an image or none."""

    @abstractmethod
    def follow(self, parent: Tensor) -> None:
        """Let row i continue the caption of row ``parent[i]``, one of the same image; only for steps made for beams."""


class Decodable(Protocol):
    """What drawing asks of a model: a family, or one whose scores are weighed against other images."""

    @property
    def eos(self) -> Sequence[int]:
        """Ids that end a caption."""
        ...

    @property
    def pad(self) -> int:
        """Id that fills captions after their end."""
        ...

    @property
    def start(self) -> Sequence[int]:
        """Ids before the first word."""
        ...

    @property
    def never_drawn(self) -> Sequence[int]:
        """Ids that may not be chosen."""
        ...

    def steps(self, encoded: Encoded, count: int, longest: int, *, beams: bool = False) -> Steps:
        """What reads one word of every caption per call."""
        ...

    def exact_logits(self, hidden: Tensor) -> Tensor:
        """``[n, V]`` scores of the next word in float32, for states that :meth:`steps` gave."""
        ...


class CachedSteps(Steps):
    """Steps of any family, through its own modules and a cache of transformers.

    Args:
        family: the model.
        encoded: states of B images.
        count: rows per image.
    """

    def __init__(self, family: Family, encoded: Encoded, count: int) -> None:
        self._family, self._encoded = family, encoded
        self._cache = family.new_cache()
        self.first = family.prefix(encoded, self._cache)
        self.image = torch.arange(len(encoded.states), device=self.first.device).repeat_interleave(count)
        if count > 1:
            self._cache = select_rows(self._cache, self.image)

    def read(self, words: Tensor) -> Tensor:
        """Through :meth:`Family.decode`."""
        return self._family.decode(words[:, None], self._encoded, self.image, self._cache)[:, -1]

    def keep(self, rows: Tensor) -> None:
        """The cache is copied."""
        self._cache, self.image = select_rows(self._cache, rows), self.image[rows]

    def follow(self, parent: Tensor) -> None:
        """Keys and values of words are copied; those of a cross-attended image stay where they are."""
        if isinstance(self._cache, EncoderDecoderCache):
            self._cache.self_attention_cache = select_rows(self._cache.self_attention_cache, parent)
        else:
            self._cache = select_rows(self._cache, parent)
