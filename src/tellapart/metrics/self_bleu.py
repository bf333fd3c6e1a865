"""Self-BLEU (Zhu et al. 2018, Texygen): how much the captions of different images repeat one another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tellapart.errors import UsageError
from tellapart.metrics.ngrams import number_all, numbered_ngrams


def self_bleu(captions: Sequence[str], *, n: int = 5, limit: int | None = 1000) -> list[float]:
    """Self-BLEU-n: BLEU-n of each caption with all others as its references.

    The values are bit for bit those of NLTK's ``sentence_bleu`` with uniform weights and
    ``SmoothingFunction().method1`` (epsilon 0.1), as used with n = 5 on the first 1000 captions for WTF-RL (Chaffin,
    Kijak, Claveau 2024). Instead of counting all references anew for every caption, the two highest counts of each
    n-gram are kept: the largest count among the *others* is the second if the caption alone holds the first.

    Args:
        captions: tokenised, one an image.
        n: longest n-gram.
        limit: only the first so many captions are used, as hypotheses and as references; None uses all.

    Returns:
        One fraction a caption, lower is more diverse; the metric is their mean, printed times 100.

    Raises:
        UsageError: there are fewer than two captions.
    """
    return self_bleus(captions, [n], limit=limit)[n]


def self_bleus(
    captions: Sequence[str], orders: Sequence[int] = (2, 3, 4), *, limit: int | None = None
) -> dict[int, list[float]]:
    """:func:`self_bleu` for several n at once, of all captions unless limited: n -> one fraction a caption.

    Raises:
        UsageError: there are fewer than two captions.
    """
    words = [caption.split() for caption in captions[:limit]]
    if len(words) < 2:
        raise UsageError(f"Self-BLEU compares captions with one another, but got {len(words)}: give at least two.")
    numbered = number_all(words)
    numerators = [
        _clipped_with_others(ngrams, owners, len(words)) for ngrams, owners in numbered_ngrams(numbered, max(orders))
    ]
    lengths = Counter(numbered.lengths.tolist())
    closest = {length: _closest_other(length, lengths) for length in lengths}
    denominators = {length: [max(1, length - order) for order in range(max(orders))] for length in lengths}
    tops = list(zip(*numerators, strict=True))
    return {
        n: [
            _method1(top[:n], denominators[length], length, closest[length])
            for top, length in zip(tops, numbered.lengths.tolist(), strict=True)
        ]
        for n in orders
    }


def _clipped_with_others(ngrams: np.ndarray, owners: np.ndarray, captions: int) -> list[int]:
    """Clipped matches of each caption with the rest, from the n-grams of all and which caption each is in."""
    if not len(ngrams):
        return [0] * captions
    pairs, counts = np.unique(ngrams * captions + owners, return_counts=True)
    gram, owner = pairs // captions, pairs % captions
    starts = np.flatnonzero(np.append(True, gram[1:] != gram[:-1]))
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(gram))))
    first = np.maximum.reduceat(counts, starts)[group]
    holds = counts == first
    second = np.maximum.reduceat(np.where(holds, 0, counts), starts)[group]
    alone = holds & (np.add.reduceat(holds, starts, dtype=np.int64)[group] == 1)
    matches = np.minimum(counts, np.where(alone, second, first))
    return np.bincount(owner, weights=matches, minlength=captions).astype(np.int64).tolist()


def _closest_other(length: int, lengths: Counter[int]) -> int:
    """The length closest to ``length`` among all captions but this one; of two equally close the shorter."""
    if lengths[length] > 1:
        return length
    return min((other for other in lengths if other != length), key=lambda other: (abs(other - length), other))


def _method1(numerators: Sequence[int], denominators: Sequence[int], length: int, closest: int) -> float:
    if numerators[0] == 0:
        return 0.0
    penalty = 1.0 if length > closest else math.exp(1 - closest / length)
    precisions = ((top or 0.1) / bottom for top, bottom in zip(numerators, denominators, strict=False))
    weight = 1 / len(numerators)
    return penalty * math.exp(math.fsum(weight * math.log(precision) for precision in precisions))
