"""How much captions differ: from one another across images, and among several of one image.

All functions take tokenised captions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice

import numpy as np

from tellapart.errors import UsageError
from tellapart.metrics.bleu import bleu, bleu_of, count_matches
from tellapart.metrics.ngrams import Ngram, ngram_counts, number_all, numbered_ngrams

# Self-BLEU (Zhu et al. 2018, Texygen): how much the captions of different images repeat one another.


def self_bleu(captions: Sequence[str], *, n: int = 5, limit: int | None = 1000) -> list[float]:
    """Self-BLEU-n: BLEU-n of each caption with all others as its references.

    The values are bit for bit those of NLTK's ``sentence_bleu`` with uniform weights and
    ``SmoothingFunction().method1`` (epsilon 0.1), as used with n = 5 on the first 1000 captions for WTF-RL (Chaffin,
    Kijak, Claveau 2024). Instead of recounting all references for every caption, the two highest counts of each
    n-gram are kept: the largest count among the *others* is the second if the caption alone holds the first.

    Args:
        captions: tokenised, one per image.
        n: longest n-gram.
        limit: maximum number of captions, the first ones, as hypotheses and as references; None means all.

    Returns:
        One fraction per caption, lower is more diverse; the metric is their mean, printed times 100.

    Raises:
        UsageError: there are fewer than two captions.
    """
    return self_bleus(captions, [n], limit=limit)[n]


def self_bleus(
    captions: Sequence[str], orders: Sequence[int] = (2, 3, 4), *, limit: int | None = None
) -> dict[int, list[float]]:
    """``self_bleu`` for several n at once, of all captions unless limited: n -> one fraction per caption.

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


# Captions of one image, and of all.


def div_n(sets: Sequence[Sequence[str]], n: int) -> float:
    """Div-n: distinct n-grams of an image's captions over all their *words*, mean over images.

    As in ImageCaptioning.pytorch and SLE (Chen & Jin 2020). It falls as captions get more or longer: compare only equal
    numbers of captions per image. For n above 1 it cannot reach 1.

    Args:
        sets: several captions per image.
        n: length of the n-grams.

    Returns:
        A fraction, higher is more diverse; a set without words counts 0.

    Raises:
        UsageError: there are no images.
    """
    if not sets:
        raise UsageError("Div-n describes the captions of images, but there are none: give at least one.")
    shares = []
    for captions in sets:
        words = [caption.split() for caption in captions]
        distinct: set[Ngram] = set().union(*(ngram_counts(caption, n) for caption in words))
        shares.append(len(distinct) / max(sum(map(len, words)), 1))
    return sum(shares) / len(shares)


def mbleu_corpus(sets: Sequence[Sequence[str]], n: int = 4) -> list[float]:
    """mBLEU-1..n among the captions of each image, as reported by default: for each slot j the *corpus* BLEU of all
    images' j-th captions against their siblings, then the mean over slots. Lower is more diverse.

    So does ImageCaptioning.pytorch, from which most papers report; it differs from ``mbleu_sentence`` by some tenths.

    Raises:
        UsageError: images have different numbers of captions, or only one.
    """
    sizes = {len(captions) for captions in sets}
    if len(sizes) != 1 or min(sizes) < 2:
        raise UsageError(f"mBLEU needs equally many captions of every image and at least 2, but found {sorted(sizes)}.")
    slots = [
        bleu(count_matches([captions[j] for captions in sets], [_rest(captions, j) for captions in sets], n))
        for j in range(sizes.pop())
    ]
    return [sum(column) / len(slots) for column in zip(*slots, strict=True)]


def mbleu_sentence(sets: Sequence[Sequence[str]], n: int = 4) -> list[float]:
    """mBLEU-1..n as the mean of *sentence* BLEU of every caption against its siblings; differs from the corpus form.

    Raises:
        UsageError: there are no images, or one has fewer than two captions.
    """
    if not sets or any(len(captions) < 2 for captions in sets):
        raise UsageError(
            "mBLEU compares the captions of one image, but an image has fewer than two: draw more of each."
        )
    places = [(captions, j) for captions in sets for j in range(len(captions))]
    matches = count_matches([captions[j] for captions, j in places], [_rest(*place) for place in places], n)
    return [float(value) for value in bleu_of(matches).mean(axis=1)]


def _rest(captions: Sequence[str], j: int) -> list[str]:
    return [*captions[:j], *captions[j + 1 :]]


def vocabulary_size(captions: Sequence[str]) -> int:
    """How many different words the captions use together. It grows with their number: compare equal numbers only."""
    words: set[str] = set()
    for caption in captions:
        words.update(caption.split())
    return len(words)


PIECE = 1000
"""Words, or captions, that are counted together where a number would otherwise grow or fall with the size of the set."""


def type_token_ratio(captions: Sequence[str], n: int = 1, *, piece: int = PIECE) -> float:
    """Different n-grams over all n-grams of each 1,000 words of running text, mean over these pieces (TTR1, TTR2).

    As van Miltenburg, Elliott and Vossen (COLING 2018) count: captions follow each other as one text, n-grams may reach from one
    caption into the next, and an incomplete last piece is left out. Their tokens keep a final full stop as a word; ours have no
    punctuation, which changes the ratio by up to 0.02 for captioners that write one.

    Args:
        captions: tokenised.
        n: length of the n-grams.
        piece: words of a piece.

    Returns:
        A fraction, higher is more diverse; not a number below one full piece. It depends on the order of the captions.

    Example:
        >>> type_token_ratio(["a dog", "a cat"], piece=4)
        0.75
    """
    words = (word for caption in captions for word in caption.split())
    ratios = []
    while len(text := [*islice(words, piece)]) == piece:
        grams = list(zip(*(text[offset:] for offset in range(n)), strict=False))
        ratios.append(len(set(grams)) / len(grams))
    return float(np.mean(ratios)) if ratios else math.nan


def coverage(captions: Sequence[str], words: Collection[str]) -> float:
    """Share of some words that the captions use at least once (*global recall*, van Miltenburg et al. 2018).

    The paper's words are those that occur both in the training captions and in the references: those that can be learned.

    Args:
        captions: tokenised.
        words: what could be said.

    Returns:
        A fraction. It grows with the number of captions.

    Raises:
        UsageError: there are no words.

    Example:
        >>> coverage(["a dog", "a cat"], ["dog", "cat", "cow", "hen"])
        0.5
    """
    known = set(words)
    if not known:
        raise UsageError("coverage is the share of given words that captions use, but there are none: give them.")
    return len(known & {word for caption in captions for word in caption.split()}) / len(known)


def in_pieces(captions: Sequence[str], *, piece: int = PIECE) -> list[Sequence[str]]:
    """The captions in full pieces of 1,000, the rest left out; all in one piece where there are fewer."""
    starts = range(0, len(captions) - piece + 1, piece)
    return [captions[start : start + piece] for start in starts] or [captions]


def novel_captions(captions: Sequence[str], training: Collection[str]) -> np.ndarray:
    """``[N]``: 1 for a caption that equals no training caption word for word, else 0; the metric is the mean.

    Args:
        captions: one per image.
        training: all training captions, tokenised in the same way.

    Raises:
        UsageError: there are no training captions, so that every caption would be new.
    """
    known = training if isinstance(training, frozenset | set) else frozenset(training)
    if not known:
        raise UsageError("novel captions are those not in the training captions, but there are none: give them.")
    return np.array([float(caption not in known) for caption in captions])


def caption_statistics(captions: Sequence[str]) -> dict[str, float]:
    """Plain figures of a set of captions, one per image: the first signs of a collapse.

    Returns:
        ``distinct`` and ``most_common``: shares (0 to 1) of distinct captions and of the most frequent one;
        ``repeated_bigrams``: share of bigrams that occurred earlier in their own caption; ``length``: mean words.

    Raises:
        UsageError: there are no captions.
    """
    if not captions:
        raise UsageError("there are no captions to describe: give at least one.")
    words = bigrams = distinct = 0
    for caption in captions:
        own = caption.split()
        words += len(own)
        bigrams += max(len(own) - 1, 0)
        distinct += len(ngram_counts(own, 2))
    times = Counter(captions)
    return {
        "distinct": len(times) / len(captions),
        "most_common": max(times.values()) / len(captions),
        "repeated_bigrams": (bigrams - distinct) / max(bigrams, 1),
        "length": words / len(captions),
    }
