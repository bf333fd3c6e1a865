"""CIDEr-D and CIDEr: consensus with human captions (Vedantam, Zitnick, Parikh 2015, sections 4 and 4.1).

CIDEr-D is what coco-caption's scorer computes and calls CIDEr: tf-idf vectors of 1- to 4-grams, the caption's weights
clipped at the reference's, a Gaussian penalty (sigma 6) on the difference in length, ten times the mean over orders and
references. The scale is 0 to 10; papers print it times 100, so that their "120" is 1.2 here. As in coco-caption the
penalty compares numbers of *bigrams*, which is the difference in words except for the empty caption. The older CIDEr
has neither clipping nor penalty and can be raised by repeating words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tellapart.errors import UsageError
from tellapart.metrics.frequencies import END, FEW_IMAGES, ORDERS, DocumentFrequencies
from tellapart.metrics.ngrams import Numbered, add_words, number_words
from tellapart.metrics.positions import (
    Scratch,
    chunks,
    columns,
    count_dtype,
    narrow,
    other_side,
    own_counts,
    same_ngrams,
)

__all__ = ["END", "ORDERS", "SIGMA", "CiderDScorer", "DocumentFrequencies", "PreparedReferences", "cider", "cider_d"]

logger = logging.getLogger(__name__)

SIGMA = 6.0
BREAK = -2
"""Stands behind every prepared reference; unlike any word or end of a caption, in every type of word numbers."""


@dataclass(frozen=True, slots=True)
class PreparedReferences:
    """References of images, ready to be compared with many captions; some 3 kB an image.

    Args:
        words: ``[T]``, numbered by the scorer that prepared them, :data:`BREAK` after each reference.
        counts: ``[4, T]``: how often the n-gram at each word occurs in its reference.
        shares: ``[4, T]``: its squared idf over the norm of the reference's vector.
        lengths: ``[R]``: words of each reference.
        sizes: ``[B]``: references of each image.
    """

    words: np.ndarray
    counts: np.ndarray
    shares: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray

    def images(self) -> list[PreparedReferences]:
        """Each image's references by themselves."""
        ends = np.append(0, np.cumsum(self.sizes))
        spans = np.append(0, np.cumsum(self.lengths + 1))[ends].tolist()
        bounds = zip(spans, spans[1:], ends.tolist(), ends[1:].tolist(), strict=False)
        return [
            PreparedReferences(
                self.words[start:stop].copy(),
                self.counts[:, start:stop].copy(),
                self.shares[:, start:stop].copy(),
                self.lengths[first:last].copy(),
                self.sizes[i : i + 1].copy(),
            )
            for i, (start, stop, first, last) in enumerate(bounds)
        ]

    @staticmethod
    def join(parts: Sequence[PreparedReferences]) -> PreparedReferences:
        """The references of all images together, in order."""
        return PreparedReferences(
            np.concatenate([part.words for part in parts]),
            np.concatenate([part.counts for part in parts], axis=1),
            np.concatenate([part.shares for part in parts], axis=1),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.sizes for part in parts]),
        )


class _Matches(NamedTuple):
    """N-grams of references that captions have too.

    Args:
        orders: ``[M]``, words of the n-gram less one.
        rows: ``[M]``, the caption.
        places: ``[M]``, where the n-gram begins among the words of all references.
        found: ``[M]``, how often the caption has it.
    """

    orders: np.ndarray
    rows: np.ndarray
    places: np.ndarray
    found: np.ndarray


class CiderDScorer:
    """CIDEr-D under fixed document frequencies, on lists of words.

    Args:
        frequencies: of n-grams in references; corpus references for the metric, training references for a reward.
        clipped: False for the older CIDEr: neither clipping nor penalty.
    """

    def __init__(self, frequencies: DocumentFrequencies, *, clipped: bool = True) -> None:
        self.frequencies, self.clipped = frequencies, clipped
        self._vocabulary = dict(frequencies.words)  # grows with references, never with captions
        self._scratch = Scratch()

    def prepare(self, references: Sequence[Sequence[Sequence[str]]]) -> PreparedReferences:
        """The tf-idf vectors of images' references, each image's a list of lists of words.

        Raises:
            ValueError: an image has no references.
        """
        if not all(references):
            raise ValueError("CIDEr compares captions with references, but an image has none")
        rows = [words for captions in references for words in captions]
        add_words(self._vocabulary, rows)
        own = number_words(rows, self._vocabulary)
        idf, counts = self.frequencies.idf(own), own_counts(own, len(ORDERS), self._scratch)
        inverse = _inverse_norms(own, idf, counts)
        places = np.arange(len(own.words)) + own.owners
        words = np.full(len(own.words) + len(rows), BREAK, np.int32)
        words[places] = own.words
        every_count, shares = np.zeros((len(ORDERS), len(words)), counts.dtype), np.zeros((len(ORDERS), len(words)))
        every_count[:, places] = counts
        shares[:, places] = idf * idf * np.repeat(inverse, own.lengths, axis=1)
        return PreparedReferences(
            words, every_count, shares, own.lengths, np.array([len(r) for r in references], np.int64)
        )

    def score(self, captions: Sequence[Sequence[str]], image: np.ndarray, references: PreparedReferences) -> np.ndarray:
        """``[N]`` float64, 0 to 10: CIDEr-D of each caption against the references of its image.

        Args:
            captions: N lists of words.
            image: ``[N]``, which of the prepared images each caption is of.
            references: of B images, each with at least one.
        """
        own = number_words(captions, self._vocabulary)
        counts = own_counts(own, len(ORDERS), self._scratch)
        inverse = _inverse_norms(own, self.frequencies.idf(own), counts)
        order, each = np.argsort(image, kind="stable"), np.bincount(image, minlength=len(references.sizes))
        first = np.cumsum(each) - each
        scores = np.zeros(len(captions))
        for count in np.unique(each[each > 0]).tolist():  # images with equally many captions together
            images = np.flatnonzero(each == count)
            rows = order[first[images] + np.arange(count)[:, None]]
            for matches in self._matches(own, rows, references, images):
                scores += self._weigh(matches, own, inverse, references)
        return scores * (10.0 / len(ORDERS)) / references.sizes[image]

    def _matches(
        self, own: Numbered, rows: np.ndarray, references: PreparedReferences, images: np.ndarray
    ) -> Iterator[_Matches]:
        """The n-grams of references that captions of their image have, some images at a time.

        An image's references lie in one column, one after the other, so that one table compares them all.

        Args:
            own: all captions.
            rows: ``[count, I]``, which captions are of each image.
            references: of all images.
            images: ``[I]``, which of these.
        """
        begin = np.cumsum(references.sizes) - references.sizes
        ours, theirs = narrow(own.words, references.words)
        spans = Numbered(theirs, np.add.reduceat(references.lengths + 1, begin))
        captions, _ = columns(Numbered(ours, own.lengths))
        tops = own.lengths[rows].max(axis=0)
        cells = tops * spans.lengths[images] * len(rows)
        order = np.argsort(-cells, kind="stable")
        for part in chunks(cells[order]):
            some = order[part]
            left = captions[: tops[some].max()].take(rows[:, some], axis=1)
            right, _ = columns(spans.select(images[some]))
            shape = (len(right), *left.shape[1:])
            places = spans.starts[images[some]] + np.arange(len(right))[:, None]
            hits, found = [], []
            for same in same_ngrams(left, other_side(right)[:, None], len(ORDERS), self._scratch):
                times = same.sum(axis=0, dtype=count_dtype(len(left))).reshape(-1)
                hits.append(np.flatnonzero(times > 0))
                found.append(times.take(hits[-1]))
            at = np.concatenate(hits)
            yield _Matches(
                np.repeat(np.arange(len(ORDERS)), [len(hit) for hit in hits]),
                np.broadcast_to(rows[:, some], shape).reshape(-1).take(at),
                np.broadcast_to(places[:, None], shape).reshape(-1).take(at),
                np.concatenate(found),
            )

    def _weigh(
        self, matches: _Matches, own: Numbered, inverse: np.ndarray, references: PreparedReferences
    ) -> np.ndarray:
        """``[N]``: the cosines of each caption with its references, summed over references and orders."""
        orders, rows, places, found = matches
        at = orders * len(references.words) + places
        if self.clipped:
            found = np.minimum(found, references.counts.reshape(-1).take(at))
        weights = (
            found * references.shares.reshape(-1).take(at) * inverse.reshape(-1).take(orders * len(own.lengths) + rows)
        )
        if self.clipped:
            bigrams = np.repeat(np.maximum(references.lengths - 1, 0), references.lengths + 1)
            difference = np.abs(bigrams.take(places) - np.maximum(own.lengths - 1, 0).take(rows))
            penalties = np.exp(-(np.arange(difference.max(initial=0) + 1.0) ** 2) / (2 * SIGMA**2))
            weights *= penalties.take(difference)
        return np.bincount(rows, weights, minlength=len(own.lengths))


def _inverse_norms(words: Numbered, idf: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``[4, N]``: one over the norms of tf-idf vectors, 0 for 0; each of ``c`` equal n-grams adds ``c`` to the square of
    ``c``."""
    norms = np.zeros((len(ORDERS), len(words.lengths)))
    some = words.lengths > 0
    if some.any():
        norms[:, some] = np.add.reduceat(idf * idf * counts, words.starts[some], axis=1)
    return np.divide(1.0, np.sqrt(norms), out=norms, where=norms > 0)


def cider_d(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    frequencies: DocumentFrequencies | None = None,
) -> dict[str, float]:
    """CIDEr-D of every image's caption; its mean is the corpus value that coco-caption prints as "CIDEr".

    Args:
        captions: image id -> tokenised caption.
        references: image id -> tokenised references; the same ids.
        frequencies: document frequencies without an end token; by default those of ``references`` ("corpus" mode).

    Returns:
        Image id -> score, 0 to 10.

    Raises:
        UsageError: there is one image only, of which every n-gram weighs nothing, and no frequencies are given.
    """
    return _of_images(captions, references, frequencies, clipped=True)


def cider(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    frequencies: DocumentFrequencies | None = None,
) -> dict[str, float]:
    """The older CIDEr of every image's caption: the mean cosine of tf-idf vectors, times 10, without clipping and
    without a penalty on length. Not what papers call CIDEr; see :func:`cider_d`, which takes the same arguments."""
    return _of_images(captions, references, frequencies, clipped=False)


def _of_images(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    frequencies: DocumentFrequencies | None,
    *,
    clipped: bool,
) -> dict[str, float]:
    if not captions:
        return {}
    scorer = CiderDScorer(frequencies or _corpus_frequencies(references), clipped=clipped)
    prepared = scorer.prepare([[text.split() for text in references[name]] for name in captions])
    scores = scorer.score([caption.split() for caption in captions.values()], np.arange(len(captions)), prepared)
    return dict(zip(captions, scores.tolist(), strict=True))


def _corpus_frequencies(references: Mapping[str, Sequence[str]]) -> DocumentFrequencies:
    if len(references) < 2:
        raise UsageError(
            "CIDEr of one image is 0 whatever the caption, since each of its n-grams is in every image: "
            "score more images together, or give document frequencies."
        )
    if len(references) < FEW_IMAGES:
        logger.warning(
            "CIDEr takes its document frequencies from only %d images: do not compare it with values of larger sets.",
            len(references),
        )
    return DocumentFrequencies.from_tokens(references)
