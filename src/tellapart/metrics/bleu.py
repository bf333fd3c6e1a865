"""BLEU as coco-caption computes it (Papineni et al. 2002, closest reference length, its tiny smoothing constants)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tellapart.metrics.ngrams import Ngram, ngram_counts

_SMALL, _TINY = 1e-9, 1e-15


class Matches(NamedTuple):
    """What BLEU needs of one caption, or summed over many: clipped matches and n-grams per order, and two lengths."""

    correct: list[int]
    guessed: list[int]
    length: int
    reference_length: int


def count_matches(candidate: str, references: Sequence[str], orders: int = 4) -> Matches:
    """Clipped n-gram matches of a tokenised caption with its tokenised references."""
    words, others = candidate.split(), [reference.split() for reference in references]
    correct = []
    for order in range(1, orders + 1):
        ceiling: dict[Ngram, int] = {}
        for other in others:
            for gram, count in ngram_counts(other, order).items():
                ceiling[gram] = max(ceiling.get(gram, 0), count)
        correct.append(sum(min(count, ceiling.get(gram, 0)) for gram, count in ngram_counts(words, order).items()))
    guessed = [max(0, len(words) - order) for order in range(orders)]
    closest = min((abs(len(other) - len(words)), len(other)) for other in others)[1]
    return Matches(correct, guessed, len(words), closest)


def bleu(matches: Iterable[Matches]) -> list[float]:
    """BLEU-1, -2, ... as fractions: of one caption, or of a corpus when the matches of all its captions are given."""
    every = list(matches)
    length, reference_length = sum(m.length for m in every), sum(m.reference_length for m in every)
    ratio = (length + _TINY) / (reference_length + _SMALL)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    scores, product = [], 1.0
    for order in range(len(every[0].correct)):
        correct, guessed = sum(m.correct[order] for m in every), sum(m.guessed[order] for m in every)
        product *= (correct + _TINY) / (guessed + _SMALL)
        scores.append(product ** (1 / (order + 1)) * penalty)
    return scores
