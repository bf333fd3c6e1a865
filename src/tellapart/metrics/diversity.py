"""How much captions differ: from one another across images, and among several of one image.

All functions take tokenised captions (:func:`tellapart.metrics.tokenizer.tokenize`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tellapart.errors import UsageError
from tellapart.metrics.bleu import bleu, count_matches
from tellapart.metrics.ngrams import Ngram, ngram_counts


def self_bleu(captions: Sequence[str], *, n: int = 5, limit: int = 1000) -> list[float]:
    """Self-BLEU (Zhu et al. 2018, Texygen): BLEU-n of each caption with all others as its references.

    The values are bit for bit those of NLTK's ``sentence_bleu`` with uniform weights and
    ``SmoothingFunction().method1`` (epsilon 0.1), as used with n = 5 on the first 1000 captions for WTF-RL (Chaffin,
    Kijak, Claveau 2024). Instead of counting all references anew for every caption, the two highest counts of each
    n-gram are kept: the largest count among the *others* is the second if the caption itself holds the first.

    Args:
        captions: one an image.
        n: longest n-gram.
        limit: only the first so many captions are used, as hypotheses and as references.

    Returns:
        One fraction a caption, lower is more diverse; the metric is their mean, printed times 100.

    Raises:
        UsageError: there are fewer than two captions.
    """
    words = [caption.split() for caption in captions[:limit]]
    if len(words) < 2:
        raise UsageError(f"Self-BLEU compares captions with one another, but got {len(words)}: give at least two.")
    numerators = [_clipped_with_others(words, order) for order in range(1, n + 1)]
    lengths = Counter(len(caption) for caption in words)
    return [
        _method1(
            [row[i] for row in numerators],
            [max(1, len(caption) - order) for order in range(n)],
            len(caption),
            _closest_other(len(caption), lengths),
        )
        for i, caption in enumerate(words)
    ]


def _clipped_with_others(words: Sequence[Sequence[str]], order: int) -> list[int]:
    """Clipped matches of each caption with the rest."""
    counts = [ngram_counts(caption, order) for caption in words]
    best: dict[Ngram, tuple[int, int, int]] = {}  # highest count, which caption has it, second highest
    for i, own in enumerate(counts):
        for gram, count in own.items():
            first, owner, second = best.get(gram, (0, -1, 0))
            best[gram] = (count, i, first) if count > first else (first, owner, max(second, count))

    def others(gram: Ngram, i: int) -> int:
        first, owner, second = best[gram]
        return second if owner == i else first

    return [sum(min(count, others(gram, i)) for gram, count in own.items()) for i, own in enumerate(counts)]


def _closest_other(length: int, lengths: Counter[int]) -> int:
    """The length closest to ``length`` among all captions but this one; of two equally close the shorter."""
    if lengths[length] > 1:
        return length
    return min((other for other in lengths if other != length), key=lambda other: (abs(other - length), other))


def _method1(numerators: list[int], denominators: list[int], length: int, closest: int) -> float:
    if numerators[0] == 0:
        return 0.0
    penalty = 1.0 if length > closest else math.exp(1 - closest / length)
    precisions = ((top or 0.1) / bottom for top, bottom in zip(numerators, denominators, strict=True))
    weight = 1 / len(numerators)
    return penalty * math.exp(math.fsum(weight * math.log(precision) for precision in precisions))


def div_n(sets: Sequence[Sequence[str]], n: int) -> float:
    """Div-n: distinct n-grams of an image's captions over all their *words*, mean over images.

    Args:
        sets: several captions an image.
        n: length of the n-grams.

    Returns:
        A fraction, higher is more diverse; a set without words counts 0.
    """
    shares = []
    for captions in sets:
        words = [caption.split() for caption in captions]
        distinct: set[Ngram] = set().union(*(ngram_counts(caption, n) for caption in words))
        shares.append(len(distinct) / max(sum(map(len, words)), 1))
    return sum(shares) / len(shares)


def mbleu_corpus(sets: Sequence[Sequence[str]], n: int = 4) -> list[float]:
    """mBLEU-1..n among the captions of each image, as reported by default: for each slot j the *corpus* BLEU of all
    images' j-th captions against their siblings, then the mean over slots. Lower is more diverse.

    Raises:
        UsageError: images have different numbers of captions, or only one.
    """
    sizes = {len(captions) for captions in sets}
    if len(sizes) != 1 or min(sizes) < 2:
        raise UsageError(f"mBLEU needs equally many captions of every image and at least 2, but found {sorted(sizes)}.")
    slots = [bleu(count_matches(*_one_against_rest(captions, j), n) for captions in sets) for j in range(sizes.pop())]
    return [sum(column) / len(slots) for column in zip(*slots, strict=True)]


def mbleu_sentence(sets: Sequence[Sequence[str]], n: int = 4) -> list[float]:
    """mBLEU-1..n as the mean of *sentence* BLEU of every caption against its siblings; differs from the corpus form.

    Raises:
        UsageError: an image has fewer than two captions.
    """
    if any(len(captions) < 2 for captions in sets):
        raise UsageError(
            "mBLEU compares the captions of one image, but an image has fewer than two: draw more of each."
        )
    rows = [
        bleu([count_matches(*_one_against_rest(captions, j), n)]) for captions in sets for j in range(len(captions))
    ]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _one_against_rest(captions: Sequence[str], j: int) -> tuple[str, list[str]]:
    return captions[j], [*captions[:j], *captions[j + 1 :]]


def caption_statistics(captions: Sequence[str]) -> dict[str, float]:
    """Plain figures of a set of captions, one an image: the first signs of a collapse.

    Returns:
        ``distinct`` and ``most_common``: shares (0 to 1) of distinct captions and of the most frequent one;
        ``repeated_bigrams``: share of bigrams that occurred earlier in their own caption; ``length``: mean words.

    Raises:
        UsageError: there are no captions.
    """
    if not captions:
        raise UsageError("there are no captions to describe: give at least one.")
    words = [caption.split() for caption in captions]
    bigrams = [ngram_counts(caption, 2) for caption in words]
    total = sum(sum(counts.values()) for counts in bigrams)
    return {
        "distinct": len(set(captions)) / len(captions),
        "most_common": Counter(captions).most_common(1)[0][1] / len(captions),
        "repeated_bigrams": (total - sum(map(len, bigrams))) / max(total, 1),
        "length": sum(map(len, words)) / len(words),
    }
