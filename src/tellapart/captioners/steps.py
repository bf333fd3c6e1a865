"""A decoder that reads one word of every caption per call, which is what greedy search, sampling and beam search share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import follow, select_rows, written

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family
    from tellapart.captioners.shortlist import Shortlist


class Steps(ABC):
    """Reads captions of B images, n rows in all, word after word.

    Attributes:
        first: ``[B, D]`` states that predict the first word of every image's captions.
        image: ``[n]``, the image of each row; rows of an image are adjacent, images in order.
    """

    first: Tensor
    image: Tensor

    @abstractmethod
    def read(self, words: Tensor) -> Tensor:
        """``[n, D]`` states that predict what follows ``words [n]``."""

    def inference(self) -> AbstractContextManager[Any]:
        """The mode in which words are read and chosen."""
        return nullcontext()

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Continue with the rows at these places only, which must rise; of beams, all rows of an image or none."""

    @abstractmethod
    def follow(self, parent: Tensor) -> None:
        """Let row i continue the caption of row ``parent[i]``, one of the same image; only for steps made for beams."""


class Decodable(Protocol):
    """The interface that drawing needs of a model: a family, or one whose scores are weighed against other images."""

    @property
    def eos(self) -> Sequence[int]:
        """Ids that end a caption."""
        ...

    @property
    def pad(self) -> int:
        """Id that fills captions after their end."""
        ...

    @property
    def never_drawn(self) -> Sequence[int]:
        """Ids that may not be chosen."""
        ...

    def before_captions(self, encoded: Encoded) -> Tensor:
        """``[B, S]`` ids that are read before the first word, below 0 where there is none."""
        ...

    def steps(self, encoded: Encoded, count: int, longest: int, *, beams: bool = False) -> Steps:
        """A decoder that reads one word of every caption per call."""
        ...

    def exact_logits(self, hidden: Tensor) -> Tensor:
        """``[n, V]`` scores of the next word in float32, for states that ``steps`` gave."""
        ...

    def shortlist(self) -> Shortlist | None:
        """What finds the highest ``exact_logits`` of a batch of captions without computing all; none: these are needed."""
        ...


class CachedSteps(Steps):
    """Steps of any family, through its own modules and a cache of transformers.

    Args:
        family: the model.
        encoded: states of B images.
        cache: what they left, B rows.
        first: ``[B, D]`` states that predict the first word.
        count: rows per image.
        longest: most words of a caption.
        written: makes the cache that words are written to, from ``cache``, the image of each row, and ``longest``.
    """

    def __init__(
        self,
        family: Family,
        encoded: Encoded,
        cache: Any,
        first: Tensor,
        *,
        count: int,
        longest: int,
        written: Callable[[Any, Tensor, int], Any] = written,
    ) -> None:
        self._family, self._encoded, self.first = family, encoded, first
        self.image = torch.arange(len(encoded.states), device=first.device).repeat_interleave(count)
        self._cache = written(cache, self.image, longest)

    def read(self, words: Tensor) -> Tensor:
        """Through ``decode``."""
        return self._family.decode(words[:, None], self._encoded, self.image, self._cache)[:, -1]

    def keep(self, rows: Tensor) -> None:
        """What is left is copied."""
        self._cache, self.image = select_rows(self._cache, rows), self.image[rows]

    def follow(self, parent: Tensor) -> None:
        """Keys and values of words are copied where the parent is another row; those of prefix and image stay."""
        self._cache = follow(self._cache, parent)
