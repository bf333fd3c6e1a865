"""The tokens that a model may answer a word with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BEFORE = ("", "▁", "Ġ")
"""What vocabularies write before a word that a space precedes."""


def one_token(tokenizer: Any, words: Sequence[str]) -> set[int]:
    """Ids of the tokens that are one of ``words``, with and without a space before it; empty where none is."""
    vocabulary = tokenizer.get_vocab()
    return {vocabulary[before + word] for before in BEFORE for word in words if before + word in vocabulary}
