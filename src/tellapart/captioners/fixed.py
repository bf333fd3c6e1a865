"""Steps that read every word by the same operations on the same memory, so that a GPU can replay them as a graph.

What grows with each word in ``DecoderSteps`` and ``CachedSteps`` has its full length here from the start: keys and values of the
words to come are there, and a mask hides them. A tensor on the device counts the words.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import FixedCache, fixed
from tellapart.captioners.decoder import Beginning, Decoder, DecoderSteps
from tellapart.captioners.graphs import Recorder, Replayed
from tellapart.captioners.steps import CachedSteps

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family


class FixedDecoderSteps(DecoderSteps):
    """The layers of a decoder, called by their parts.

    Args:
        decoder: as for ``DecoderSteps``, and so are the others.
        beginning: of B images.
        embed: of words.
        count: rows per image.
        longest: most words of a caption.
        beams: whether the rows of an image are beams.
        recorder: makes graphs.
    """

    def __init__(
        self,
        decoder: Decoder,
        beginning: Beginning,
        embed: nn.Module,
        *,
        count: int,
        longest: int,
        beams: bool,
        recorder: Recorder,
    ) -> None:
        super().__init__(decoder, beginning, embed, count=count, longest=longest, beams=beams)
        self._longest, self._recorder = longest, recorder
        if beams:
            shape = *self._own.shape[:2], longest, count
            self._ancestors = self._own.new_zeros(shape)
            self._own = self._own.contiguous()
        self._replay()

    def _roomy(self, like: Tensor, groups: int, room: int) -> tuple[Tensor, ...]:
        """Head by head, and finite: what is hidden by a mask still takes part."""
        shape = groups, 2, like.shape[2], room, like.shape[4]
        return tuple(like.new_zeros(shape) for _ in self._decoder.blocks)

    def _replay(self) -> None:
        device = self.image.device
        self._place = torch.full((1,), self._read, device=device)
        self._columns = torch.arange(self._start + self._longest * self._step, device=device)
        self._replayed = Replayed(self._recorder)

    def inference(self) -> AbstractContextManager[Any]:
        """No other mode: operations are recorded as they are."""
        return nullcontext()

    def read(self, words: Tensor) -> Tensor:
        """The words' embeddings through every layer."""
        self._length += self._step
        self._read += 1
        return self._replayed(self._read_word, words)

    def _read_word(self, words: Tensor) -> Tensor:
        positions = self._beginning.positions(self._begun, self._place)
        begin = self._start + self._step * self._place
        self._written_to = begin + self._columns[: self._step]
        seen = self._seen_beams() if self._beams else self._seen_captions(begin)
        states = self._through_layers(words, positions, seen)
        self._place += 1
        return states

    def _written(self, words: Tensor, new: Tensor) -> Tensor:
        """All columns."""
        return words.index_copy_(3, self._written_to, new)

    def _seen_captions(self, last: Tensor) -> Tensor:
        """``[n or 1, 1, 1, columns]`` bool: the beginning, and the words up to the one that is read in column ``last``."""
        seen = (self._columns <= last)[None]
        if self._real is not None:
            seen = seen & pad(self._real, (0, self._longest), value=True)
        return seen[:, None, None]

    def _seen_beams(self) -> Tensor:
        """``[B, 1, beams, columns]`` bool: the beginning, and the words of each beam's own caption."""
        self._ancestors.index_copy_(2, self._place, self._own)
        return self._with_beginning(self._ancestors)

    def keep(self, rows: Tensor) -> None:
        """What is left moves together, and is recorded again."""
        super().keep(rows)
        self._replay()

    def follow(self, parent: Tensor) -> None:
        """Each beam takes over which words are its parent's."""
        self._ancestors.copy_(self._parents(parent))


class FixedCachedSteps(CachedSteps):
    """Steps of a family that reads its prefix and its words through its own modules.

    Args:
        family: as for ``CachedSteps``, and so are the others.
        encoded: states of B images.
        cache: what they left, B rows.
        first: ``[B, D]`` states that predict the first word.
        count: rows per image.
        longest: most words of a caption.
        beams: whether the rows of an image are beams.
        recorder: makes graphs.
    """

    _cache: FixedCache

    def __init__(
        self,
        family: Family,
        encoded: Encoded,
        cache: Any,
        first: Tensor,
        *,
        count: int,
        longest: int,
        beams: bool,
        recorder: Recorder,
    ) -> None:
        super().__init__(family, encoded, cache, first, count=count, longest=longest, written=fixed)
        self._beams, self._recorder = beams, recorder
        self._replay()

    def _replay(self) -> None:
        self._own = torch.arange(len(self.image), device=self.image.device)
        self._parent = self._own.clone()
        self._replayed = Replayed(self._recorder)

    def read(self, words: Tensor) -> Tensor:
        """Through ``decode``."""
        return self._replayed(self._read_word, words)

    def _read_word(self, words: Tensor) -> Tensor:
        if self._beams:
            self._cache.follow(self._parent)
            self._parent.copy_(self._own)
        states = super().read(words)
        self._cache.place += 1
        return states

    def keep(self, rows: Tensor) -> None:
        """What is left is copied, and recorded again."""
        if self._beams:
            self._cache.follow(self._parent)  # rows are chosen by where they are after words have moved to their beams
        super().keep(rows)
        self._replay()

    def follow(self, parent: Tensor) -> None:
        """Words move when the next one is read."""
        self._parent.copy_(parent)
