"""How much the captions drawn for one image differ from one another: BLEU of every pair.

The distance is that of SLE (Chen & Jin 2020, section 4): one minus BLEU-3 plus one minus BLEU-4 of one caption with the
other as its only reference. The paper does not say how BLEU becomes a distance; that and the symmetry are ours.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

import numpy as np

from tellapart.errors import UsageError
from tellapart.metrics.bleu import Matches, bleu_of, guesses
from tellapart.metrics.ngrams import Numbered, number_all
from tellapart.metrics.positions import (
    Scratch,
    chunks,
    columns,
    count_dtype,
    narrow,
    other_side,
    own_tables,
    same_ngrams,
)

SMOOTHING = 1e-6
"""Smaller distances are 0: coco-caption's constants leave some 1e-9 between a caption and itself."""

Caption = str | Sequence[Hashable] | np.ndarray
"""Tokenised text, words one by one, or an array of token ids (the quickest: nothing must be looked up)."""


def pairwise_bleu(samples: Sequence[Sequence[Caption]], orders: Sequence[int] = (1, 2, 3, 4)) -> np.ndarray:
    """Sentence BLEU (coco-caption's, see ``tellapart.metrics.bleu``) of every caption with every other of its image.

    Args:
        samples: s captions of each of B images; s is the same for all. A padded row of ids must be cut at its end.
        orders: which BLEU-n.

    Returns:
        ``[orders, B, s, s]``: at ``[.., j, k]`` caption j is scored and caption k is its reference, from 0 to 1.

    Raises:
        UsageError: images have different numbers of captions.
    """
    counts = {len(captions) for captions in samples}
    if len(counts) != 1:
        raise UsageError(f"pairwise BLEU needs equally many captions of every image, but found {sorted(counts)}.")
    s, top = counts.pop(), max(orders)
    words = _number([text for captions in samples for text in captions])
    first, second = np.array([*combinations(range(s), 2)], np.int64).reshape(-1, 2).T
    of_image = np.arange(len(samples))[:, None] * s
    correct = np.empty((top, len(samples), s, s), np.int64)
    shared = _shared(words, (of_image + first).reshape(-1), (of_image + second).reshape(-1), top)
    correct[:, :, first, second] = correct[:, :, second, first] = shared.reshape(top, len(samples), -1)
    lengths = words.lengths.reshape(-1, s, 1)
    guessed = guesses(lengths, top)
    correct[:, :, range(s), range(s)] = guessed[..., 0]
    return bleu_of(Matches(correct, guessed, lengths, lengths.swapaxes(1, 2)), orders)


def _number(captions: Sequence[Caption]) -> Numbered:
    ids = [text for text in captions if isinstance(text, np.ndarray)]
    if ids and len(ids) == len(captions):
        return Numbered(np.concatenate(ids), np.fromiter(map(len, ids), np.int64, len(ids)))
    return number_all([text.split() if isinstance(text, str) else list(text) for text in captions])


def _shared(captions: Numbered, left: np.ndarray, right: np.ndarray, orders: int) -> np.ndarray:
    """``[orders, P]``: n-grams that two captions share, each as often as the caption with fewer has it.

    Args:
        captions: all of them.
        left: ``[P]``, one of each pair.
        right: ``[P]``, the other.
        orders: longest n-gram.
    """
    scratch = Scratch()
    sizes = np.maximum(captions.lengths[left], captions.lengths[right])
    order = np.argsort(-sizes, kind="stable")
    ours, _ = columns(Numbered(narrow(captions.words)[0], captions.lengths))
    ranks, theirs = own_tables(ours, orders, scratch, earlier=True), other_side(ours)
    shared = np.zeros((orders, len(left)), np.int64)
    for part in chunks(sizes[order] ** 2):
        pairs = order[part]
        longest = int(sizes[pairs[0]])
        one, other = ours[:longest].take(left[pairs], axis=1), theirs[:longest].take(right[pairs], axis=1)
        earlier = ranks[:, :longest].take(right[pairs], axis=2)
        for n, same in enumerate(same_ngrams(one, other, orders, scratch)):
            found = same.sum(axis=0, dtype=ranks.dtype)
            # the k-th of equal n-grams counts if the other caption has at least k
            shared[n, pairs] = (earlier[n, : len(found)] < found).sum(axis=0, dtype=count_dtype(longest))
    return shared


def bleu_distances(samples: Sequence[Sequence[Caption]], orders: Sequence[int] = (3, 4)) -> np.ndarray:
    """``[B, s, s]``: the sum over ``orders`` of one minus BLEU-n, the mean of both directions; 0 (equal) to 2.

    A scored caption of L words has no n-grams beyond L, where coco-caption's smoothing makes BLEU-n of a caption with
    itself 0 (one to three words). So BLEU of order min(n, L) takes the place of BLEU-n here.

    Args:
        samples: s captions of each of B images; s is the same for all.
        orders: which BLEU-n; the published ones are 3 and 4.

    Raises:
        UsageError: images have different numbers of captions.

    Example::

        distances = bleu_distances([["a dog", "a dog", "a cat"]])
        distances[0, 0, 1]  # 0.0, equal captions
        distances[0, 0, 2]  # 2.0, no bigram in common
    """
    bleu = pairwise_bleu(samples, range(1, max(orders) + 1))
    lengths = _number([text for captions in samples for text in captions]).lengths.reshape(*bleu.shape[1:3], 1)
    highest = np.maximum(lengths, 1)  # of an empty caption BLEU-1, which is 0
    one_way = sum(1 - np.take_along_axis(bleu, np.minimum(n, highest)[None] - 1, axis=0)[0] for n in orders)
    distances = (one_way + one_way.swapaxes(1, 2)) / 2
    equal = (distances < SMOOTHING) | ((lengths == 0) & (lengths.swapaxes(1, 2) == 0))
    return np.where(equal, 0.0, distances)
