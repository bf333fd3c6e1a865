"""How each family of dual encoders wants its texts: where it pools, and what it must therefore not lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tellapart.errors import UsageError

_LEGACY_EOS = 2

GEMMA = "<start_of_turn>"
"""A token that Gemma's vocabulary has, and that of the first SigLIP has not."""


class ClipTexts:
    """CLIP: causal, pooled at the first EOS.

    A text without EOS would silently be pooled at position 0, whose state is the same for all texts. So every text
    ends in EOS here, also one that is cut. Configurations with the legacy ``eos_token_id = 2`` (all of OpenAI's) are
    pooled at the *highest* id instead, which is right only if EOS is the highest of all.

    Raises:
        UsageError: model and tokenizer disagree on where a text ends.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self._tokenizer, self._limit, self._eos = tokenizer, config.max_position_embeddings, tokenizer.eos_token_id
        if self._eos is None:
            raise UsageError("the listener's tokenizer has no EOS token, at which CLIP pools a text: set eos_token.")
        highest = max(tokenizer.get_vocab().values())
        if config.eos_token_id == _LEGACY_EOS and self._eos != highest:
            raise UsageError(
                f"the listener's eos_token_id is 2, with which CLIP pools a text at its highest token id, but EOS is "
                f"{self._eos} of {highest}: use another id for EOS, in the tokenizer and in text_config.eos_token_id."
            )
        if config.eos_token_id not in (_LEGACY_EOS, self._eos):
            raise UsageError(
                f"the listener pools texts at token {config.eos_token_id} (text_config.eos_token_id), but its "
                f"tokenizer ends them with {self._eos}: make the two agree."
            )
        self._pad = self._eos if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids that end in EOS."""
        rows = self._tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        return [row if row and row[-1] == self._eos else [*row, self._eos] for row in rows]

    def cut(self, ids: list[int]) -> list[int]:
        """At most as many ids as the model has positions, EOS kept."""
        return ids if len(ids) <= self._limit else [*ids[: self._limit - 1], ids[-1]]

    def width(self, ids: list[int]) -> int:
        """Tokens that the model reads of a text with these ids."""
        return len(ids)

    def pad(self, ids: Sequence[list[int]]) -> dict[str, Tensor]:
        """Padded on the right to the longest, which a causal encoder does not see."""
        width = max(map(len, ids))
        return {
            "input_ids": torch.tensor([row + [self._pad] * (width - len(row)) for row in ids]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids]),
        }


class SiglipTexts:
    """SigLIP: pooled at the last *position*, so every text is padded to the full length, and the padding is attended
    to.

    Padding to the longest text of a batch, or passing an attention mask, would move the similarities silently.

    SigLIP 2 (Tschannen et al. 2025) was trained on texts in lower case, and reads Gemma's vocabulary, whose tokenizer keeps
    capitals; so texts are lower-cased here where the tokenizer is Gemma's.

    Raises:
        UsageError: the tokenizer cannot pad.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self._tokenizer, self._limit, self._pad = tokenizer, config.max_position_embeddings, tokenizer.pad_token_id
        if self._pad is None:
            raise UsageError("the listener's tokenizer has no padding token, which SigLIP reads: set pad_token.")
        self._lower = GEMMA in tokenizer.get_vocab()

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with the special tokens of the tokenizer."""
        said = [text.lower() for text in texts] if self._lower else list(texts)
        return self._tokenizer(said, truncation=False, padding=False, verbose=False)["input_ids"]

    def cut(self, ids: list[int]) -> list[int]:
        """At most as many ids as the model has positions, the last one kept."""
        return ids if len(ids) <= self._limit else [*ids[: self._limit - 1], ids[-1]]

    def width(self, ids: list[int]) -> int:
        """The full length, whatever the ids."""
        return self._limit

    def pad(self, ids: Sequence[list[int]]) -> dict[str, Tensor]:
        """Padded to the full length; no attention mask."""
        return {"input_ids": torch.tensor([row + [self._pad] * (self._limit - len(row)) for row in ids])}


TEXT_FAMILIES: dict[str, type[ClipTexts] | type[SiglipTexts]] = {
    "clip": ClipTexts,
    "clip4clip": ClipTexts,
    "siglip": SiglipTexts,
    "siglip2": SiglipTexts,
}
"""``config.model_type`` -> how its texts are prepared: ids of any length, cut to what the model takes, padded to tensors."""
