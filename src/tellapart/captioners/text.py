"""Between caption strings and caption tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tellapart.captioners.families.base import Family
from tellapart.errors import UsageError
from tellapart.ops import first_eos_mask
from tellapart.processors import require_known
from tellapart.types import Batch, Rollout

logger = logging.getLogger(__name__)


class CaptionText:
    """Reads human captions and writes drawn ones.

    Args:
        tokenizer: the model's.
        family: names EOS and padding.
        max_caption_tokens: human captions are cut to this many tokens, EOS counted.

    Attributes:
        cut: human captions cut so far.

    Raises:
        UsageError: the tokenizer has no words, or more than the model has embeddings for.
    """

    def __init__(self, tokenizer: Any, family: Family, max_caption_tokens: int) -> None:
        self.tokenizer, self.max_caption_tokens, self.cut = tokenizer, max_caption_tokens, 0
        self.eos, self.pad, self.lead = list(family.eos), family.pad, family.caption_lead
        self._known = family.vocab_size
        # A tokenizer whose vocabulary file is missing loads all the same for some families, and calls every word unknown.
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            raise UsageError(
                "the tokenizer knows no word but its special tokens: add its tokenizer.json or vocabulary."
            )
        largest = max(tokenizer.get_vocab().values())
        if largest >= family.vocab_size:
            raise UsageError(
                f"the tokenizer has token {largest} but the model only {family.vocab_size} tokens: give the tokenizer that "
                "the model was trained with."
            )

    def write(self, batch: Batch, tokens: Tensor, count: int) -> Rollout:
        """``[B * count, T]`` drawn tokens as a rollout; what follows the first EOS is dropped."""
        mask, finished = first_eos_mask(tokens, self.eos)
        width = int(mask.sum(dim=1).max())
        mask = mask[:, :width]
        tokens = tokens[:, :width].masked_fill(~mask, self.pad)
        rows = [row[:length] for row, length in zip(tokens.tolist(), mask.sum(dim=1).tolist(), strict=True)]
        texts = [text.strip() for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]
        image = torch.arange(len(batch), device=tokens.device).repeat_interleave(count)
        return Rollout(batch, image, texts, tokens, mask, finished)

    def read(self, batch: Batch, texts: Sequence[str], image: Tensor, device: torch.device) -> Rollout:
        """Human captions as a rollout: no special tokens but the EOS that ends each; a caption that is cut has none."""
        stripped = [" ".join(text.split()) for text in texts]
        rows = [[token for token in row if token not in self.eos] + self.eos[:1] for row in self._ids(stripped)]
        finished = [len(row) <= self.max_caption_tokens for row in rows]
        rows = [row[: self.max_caption_tokens] for row in rows]
        self._count(len(finished) - sum(finished))
        shown = [
            text if whole else self.tokenizer.decode(row, skip_special_tokens=True).strip()
            for text, whole, row in zip(stripped, finished, rows, strict=True)
        ]
        width = max(map(len, rows), default=1)
        tokens = torch.tensor([row + [self.pad] * (width - len(row)) for row in rows], dtype=torch.long)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        mask = torch.arange(width) < lengths[:, None]
        place = torch.as_tensor(image, dtype=torch.long).to(device)
        done = torch.tensor(finished, dtype=torch.bool, device=device)
        return Rollout(batch, place, shown, tokens.view(len(rows), width).to(device), mask.to(device), done)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        led = [self.lead + text for text in texts]
        ids = self.tokenizer(led, add_special_tokens=False, verbose=False)["input_ids"]
        require_known(ids, self._known, "the captioner")
        return ids

    def _count(self, cut: int) -> None:
        if cut and not self.cut:
            logger.warning("a human caption is longer than %d tokens and was cut", self.max_caption_tokens)
        self.cut += cut
