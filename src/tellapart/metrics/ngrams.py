"""Counting n-grams."""

from __future__ import annotations

from collections.abc import Sequence

Ngram = tuple[str, ...]


def ngram_counts(words: Sequence[str], order: int) -> dict[Ngram, int]:
    """How often each n-gram of ``order`` words occurs, in order of first occurrence."""
    counts: dict[Ngram, int] = {}
    for gram in zip(*[words[start:] for start in range(order)], strict=False):
        counts[gram] = counts.get(gram, 0) + 1
    return counts
