"""A listener that remembers the texts it has read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from tellapart.types import Batch, Listener


class RememberingTexts:
    """A frozen listener whose text embeddings are kept, so that each string is embedded once.

    In a training step reward and discriminator read the same captions. What was asked for longest ago is dropped first.
    Images are left to the listener, which has its own cache.

    The last bits of an embedding depend on the texts it was computed with. So a training that is to resume to the same
    weights must call ``begin`` in each step: what is remembered then follows from the step alone.

    Args:
        listener: a dual encoder.
        capacity: most texts kept; 100 000 of width 512 take 0.2 GB.
        group: new texts are embedded in groups of this size, of similar length, which saves padding.

    Raises:
        ValueError: ``capacity`` or ``group`` is below 1.
    """

    def __init__(self, listener: Listener, capacity: int = 100_000, *, group: int = 32) -> None:
        if capacity < 1 or group < 1:
            raise ValueError(f"capacity={capacity} and group={group} must be at least 1")
        self.listener, self.name, self.capacity, self.group = listener, listener.name, capacity, group
        self._kept: dict[str, Tensor] = {}
        self._step: Hashable = None
        self._dropped = False

    @classmethod
    def around(cls, listener: Listener) -> RememberingTexts:
        """The listener, made to remember unless it does already."""
        return listener if isinstance(listener, cls) else cls(listener)

    def encode_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm; the listener's own."""
        return self.listener.encode_images(batch)

    def encode_ids(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm; the listener's own."""
        return self.listener.encode_ids(ids)

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, without gradient; only texts that are not remembered are embedded."""
        if not texts:
            return self.listener.encode_texts([])
        distinct = dict.fromkeys(texts)
        rows = {text: self._kept.pop(text) for text in distinct if text in self._kept}
        missing = sorted((text for text in distinct if text not in rows), key=len)
        for start in range(0, len(missing), self.group):
            new = missing[start : start + self.group]
            embedded = self.listener.encode_texts(new).detach()
            rows |= {text: row.clone() for text, row in zip(new, embedded, strict=True)}  # a view keeps all rows alive
        self._kept |= rows
        while len(self._kept) > self.capacity:
            del self._kept[next(iter(self._kept))]
            self._dropped = True
        return torch.stack([rows[text] for text in texts])

    def begin(self, step: Hashable) -> None:
        """Drop every text if the step differs from the last one, or if not all of its texts could be kept.

        Call it before the texts of a step are read.

        Args:
            step: a training step, or anything else that decides which texts are read.
        """
        if step != self._step or self._dropped:
            self.forget()
        self._step = step

    def forget(self) -> None:
        """Drop every text."""
        self._kept.clear()
        self._dropped = False
