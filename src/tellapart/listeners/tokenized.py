"""Shared by matchers that have an image processor, a tokenizer and a longest text."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tellapart.errors import preparing
from tellapart.listeners.pairs import PairMatcher, Precision
from tellapart.processors import require_known

if TYPE_CHECKING:
    from PIL import Image


class TokenizedMatcher(PairMatcher, ABC):
    """A matcher that reads images of its processor and the tokens of its tokenizer.

    Args:
        model: the model.
        image_processor: of its images.
        tokenizer: of its texts, which ends each of them with a token.
        limit: the longest text in tokens.
        name: key of its tensors in ``batch.inputs``.
        batch_size: most images, and most texts, read at once.
        autocast: precision of matrix products.
    """

    def __init__(
        self,
        model: Any,
        image_processor: Any,
        tokenizer: Any,
        *,
        limit: int,
        name: str,
        batch_size: int,
        autocast: Precision,
    ) -> None:
        super().__init__(model, name=name, batch_size=batch_size, autocast=autocast)
        self.image_processor, self.tokenizer, self._limit = image_processor, tokenizer, limit
        tables = (part for part in model.modules() if isinstance(part, nn.Embedding))
        self._known = max(table.num_embeddings for table in tables)  # words outnumber positions

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text has more tokens than the model takes."""
        return [len(row) > self._limit for row in self._all_ids(texts)]

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """RGB images -> ``{"pixel_values": [B, 3, height, width]}``, on the CPU."""
        with preparing(self.source):
            return {"pixel_values": self.image_processor(images=images, return_tensors="pt")["pixel_values"]}

    def tokens(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """``([N, T], [N, T])``: ids of ``ids`` padded on the right, and their attention mask."""
        return self.pad(self.ids(texts))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids; a text that is too long is cut, keeping its last token."""
        rows = self._all_ids(texts)
        return [row if len(row) <= self._limit else [*row[: self._limit - 1], row[-1]] for row in rows]

    def pad(self, ids: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """``([N, T], [N, T])``: ids padded on the right, and their attention mask."""
        require_known(ids, self._known, self.source)
        width = max(map(len, ids))
        tokens = torch.tensor([row + [self.tokenizer.pad_token_id] * (width - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
        return tokens.to(self.device), mask.to(self.device)

    def _all_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"] if texts else []
