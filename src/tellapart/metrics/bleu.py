"""BLEU as coco-caption computes it (Papineni et al. 2002, closest reference length, its tiny smoothing constants)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tellapart.metrics.ngrams import Numbered
from tellapart.metrics.pairs import Pairs
from tellapart.metrics.positions import (
    LONG,
    Scratch,
    chunks,
    columns,
    count_dtype,
    narrow,
    other_side,
    own_tables,
    same_ngrams,
)

_SMALL, _TINY = 1e-9, 1e-15


class Matches(NamedTuple):
    """The statistics of captions for BLEU.

    Args:
        correct: ``[orders, N]``, n-grams found in a reference, each at most as often as in the reference with most.
        guessed: ``[orders, N]``, n-grams of the caption.
        lengths: ``[N]``, words of the caption.
        reference_lengths: ``[N]``, words of the reference closest in length; of two the shorter.
    """

    correct: np.ndarray
    guessed: np.ndarray
    lengths: np.ndarray
    reference_lengths: np.ndarray


def count_matches(candidates: Sequence[str], references: Sequence[Sequence[str]], orders: int = 4) -> Matches:
    """Clipped n-gram matches of tokenised captions with their tokenised references.

    Args:
        candidates: N captions.
        references: N lists of at least one reference.
        orders: longest n-gram.

    Raises:
        ValueError: a caption has no reference.
    """
    return matches_of(Pairs.of(candidates, references), orders)


def matches_of(pairs: Pairs, orders: int = 4) -> Matches:
    """``count_matches`` of captions and references that are numbered already."""
    shapes = (orders, len(pairs.sizes)), (len(pairs.sizes),)
    found = Matches(*(np.empty(shape, np.int64) for shape in (shapes[0], shapes[0], shapes[1], shapes[1])))
    for some, part in pairs.parts():
        for whole, counted in zip(found, _count(part.own, part.others, part.sizes, orders), strict=True):
            whole[..., some] = counted
    return found


def _count(own: Numbered, others: Numbered, sizes: np.ndarray, orders: int) -> Matches:
    scratch = Scratch()
    first = np.cumsum(sizes) - sizes
    own_words, other_words = narrow(own.words, others.words)
    longest = np.maximum(own.lengths, np.maximum.reduceat(others.lengths, first))
    correct = np.zeros((orders, len(own.lengths)), np.int64)
    for row in np.flatnonzero(longest > LONG):
        captions = others.select(first[row] + np.arange(sizes[row]))
        texts = [part.tolist() for part in np.split(captions.words, captions.starts[1:])]
        correct[:, row] = _counted_matches(own.select(np.array([row])).words.tolist(), texts, orders)
    cells = longest**2 * sizes
    order = np.argsort(-cells, kind="stable")
    order = order[longest[order] <= LONG]
    for part in chunks(cells[order]):
        rows = order[part]
        starts = np.cumsum(sizes[rows]) - sizes[rows]
        owner = np.repeat(np.arange(len(rows)), sizes[rows])
        references = (first[rows] - starts)[owner] + np.arange(len(owner))
        left, _ = columns(Numbered(other_words, others.lengths).select(references))
        right, _ = columns(Numbered(own_words, own.lengths).select(rows))
        ranks = own_tables(right, orders, scratch, earlier=True)
        tables = same_ngrams(left, other_side(right).take(owner, axis=1), orders, scratch)
        for n, same in enumerate(tables):
            found = np.maximum.reduceat(same.sum(axis=0, dtype=count_dtype(len(left))), starts, axis=1)
            # the k-th of equal n-grams counts if a reference has at least k
            correct[n, rows] = (ranks[n, : len(found)] < found).sum(axis=0)
    distance = np.abs(others.lengths - np.repeat(own.lengths, sizes)) * (1 << 32) + others.lengths
    closest = np.minimum.reduceat(distance, first) % (1 << 32)
    return Matches(correct, guesses(own.lengths, orders), own.lengths, closest)


def _counted_matches(words: list[int], references: Sequence[list[int]], orders: int) -> list[int]:
    """Clipped matches of each order, by dictionaries: in a time that grows with the number of words, not with its square."""
    matches = []
    for order in range(1, orders + 1):
        others = [_ngram_counts(reference, order) for reference in references]
        own = _ngram_counts(words, order)
        matches.append(sum(min(times, max(other.get(gram, 0) for other in others)) for gram, times in own.items()))
    return matches


def _ngram_counts(words: list[int], order: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*[words[start:] for start in range(order)], strict=False))


def guesses(lengths: np.ndarray, orders: int) -> np.ndarray:
    """``[orders, ...]``: number of n-grams in captions of each length in words."""
    return np.maximum(lengths - np.arange(orders).reshape(-1, *[1] * lengths.ndim), 0)


def bleu_of(matches: Matches, orders: Sequence[int] | None = None) -> np.ndarray:
    """BLEU-n as fractions, of each caption on its own.

    Args:
        matches: of captions; the axes after the orders may be of any shape.
        orders: which n; by default 1, 2, ... of all.

    Returns:
        ``[orders, N]``.
    """
    top = len(matches.correct)
    chosen = np.arange(1, top + 1) if orders is None else np.array(orders)
    ratio = (matches.lengths + _TINY) / (matches.reference_lengths + _SMALL)
    penalty = np.minimum(1 - 1 / ratio, 0.0)
    shares = matches.correct + _TINY  # one array for every step: there may be millions of captions
    shares /= matches.guessed + _SMALL
    logs = np.cumsum(np.log(shares, out=shares), axis=0, out=shares)[chosen - 1]
    logs /= chosen.reshape(-1, *[1] * penalty.ndim)
    logs += penalty
    return np.exp(logs, out=logs)


def bleu(matches: Matches) -> list[float]:
    """BLEU-1, -2, ... of the corpus, as fractions: from the sums over its captions."""
    total = Matches(*(np.atleast_1d(part.sum(axis=-1)).reshape(*part.shape[:-1], 1) for part in matches))
    return [float(value) for value in bleu_of(total)[:, 0]]
