"""CIDEr-D and CIDEr: consensus with human captions (Vedantam, Zitnick, Parikh 2015, sections 4 and 4.1).

CIDEr-D is what coco-caption's scorer computes and calls CIDEr: tf-idf vectors of 1- to 4-grams, the caption's weights
clipped at the reference's, a Gaussian penalty (sigma 6) on the difference in length, ten times the mean over orders and
references. The scale is 0 to 10; papers print it times 100, so that their "120" is 1.2 here. As in coco-caption the
penalty compares numbers of *bigrams*, which is the difference in words except for the empty caption. The older CIDEr
has neither clipping nor penalty and can be raised by repeating words.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tellapart.errors import UsageError
from tellapart.metrics.frequencies import END, FEW_IMAGES, ORDERS, DocumentFrequencies
from tellapart.metrics.ngrams import Numbered, add_words, number_words
from tellapart.metrics.occurrences import Lanes, occurrences
from tellapart.metrics.pairs import Pairs
from tellapart.metrics.positions import Scratch, own_counts

__all__ = [
    "END",
    "ORDERS",
    "SIGMA",
    "CiderDScorer",
    "DocumentFrequencies",
    "PreparedReferences",
    "cider",
    "cider_d",
    "cider_d_of",
]

logger = logging.getLogger(__name__)

SIGMA = 6.0
_IMAGES = 128
"""Images whose references are compared together: the tables stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class PreparedReferences:
    """References of images, ready to be compared with many captions; about 1 kB per image.

    Args:
        words: ``[T]``, numbered by the scorer that prepared them.
        lengths: ``[R]``: words of each reference.
        inverse: ``[R, 4]``: one over the norm of the reference's vector of each order, 0 for 0.
        sizes: ``[B]``: references of each image.
    """

    words: np.ndarray
    lengths: np.ndarray
    inverse: np.ndarray
    sizes: np.ndarray

    def images(self) -> list[PreparedReferences]:
        """Each image's references on their own."""
        ends = np.append(0, np.cumsum(self.sizes))
        spans = np.append(0, np.cumsum(self.lengths))[ends].tolist()
        bounds = zip(spans, spans[1:], ends.tolist(), ends[1:].tolist(), strict=False)
        return [
            PreparedReferences(
                self.words[start:stop].copy(),
                self.lengths[first:last].copy(),
                self.inverse[first:last].copy(),
                self.sizes[i : i + 1].copy(),
            )
            for i, (start, stop, first, last) in enumerate(bounds)
        ]

    def select(self, images: np.ndarray) -> PreparedReferences:
        """Some of the images, in that order."""
        every = Numbered(self.words, self.lengths)
        chosen = Numbered(np.arange(len(self.lengths)), self.sizes).places(images)
        return PreparedReferences(*every.select(chosen), self.inverse[chosen], self.sizes[images])

    @staticmethod
    def join(parts: Sequence[PreparedReferences]) -> PreparedReferences:
        """The references of all images together, in order."""
        return PreparedReferences(
            np.concatenate([part.words for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.inverse for part in parts]),
            np.concatenate([part.sizes for part in parts]),
        )


class CiderDScorer:
    """CIDEr-D under fixed document frequencies, on lists of words.

    Args:
        frequencies: of n-grams in references; corpus references for the metric, training references for a reward.
        clipped: False for the older CIDEr: neither clipping nor penalty.

    Attributes:
        vocabulary: word -> its number.
    """

    def __init__(self, frequencies: DocumentFrequencies, *, clipped: bool = True) -> None:
        self.frequencies, self.clipped = frequencies, clipped
        self.vocabulary = dict(frequencies.words)  # grows with references, never with captions
        self._scratch = Scratch()

    def prepare(self, references: Sequence[Sequence[Sequence[str]]]) -> PreparedReferences:
        """The tf-idf vectors of images' references, each image's a list of lists of words.

        Raises:
            ValueError: an image has no references.
        """
        if not all(references):
            raise ValueError("CIDEr compares captions with references, but an image has none")
        rows = [words for captions in references for words in captions]
        add_words(self.vocabulary, rows)
        sizes = np.array([len(captions) for captions in references], np.int64)
        return self.prepare_numbered(number_words(rows, self.vocabulary), sizes)

    def prepare_numbered(self, references: Numbered, sizes: np.ndarray) -> PreparedReferences:
        """The same for references whose words have this scorer's numbers.

        Args:
            references: of all images.
            sizes: ``[B]``, references of each image, at least one.
        """
        counts = own_counts(references, len(ORDERS), self._scratch)
        inverse = _inverse_norms(references, self.frequencies.idf(references) ** 2, counts)
        return PreparedReferences(references.words, references.lengths, inverse.T.copy(), sizes)

    def score(self, captions: Sequence[Sequence[str]], image: np.ndarray, references: PreparedReferences) -> np.ndarray:
        """``[N]`` float64, 0 to 10: CIDEr-D of each caption against the references of its image.

        Args:
            captions: N lists of words.
            image: ``[N]``, which of the prepared images each caption is of.
            references: of B images, each with at least one.
        """
        return self.score_numbered(number_words(captions, self.vocabulary), image, references)

    def score_numbered(self, captions: Numbered, image: np.ndarray, references: PreparedReferences) -> np.ndarray:
        """The same for captions whose words have this scorer's numbers, and others where it has none."""
        image = np.asarray(image, np.int64)
        if len(references.sizes) <= _IMAGES:
            return self._score(captions, image, references)
        scores = np.zeros(len(image))
        by_size = np.argsort(
            references.sizes, kind="stable"
        )  # images with many references do not widen the tables of others
        rank = np.empty(len(by_size), np.int64)
        rank[by_size] = np.arange(len(by_size))
        place = rank[image]
        order = np.argsort(place, kind="stable")
        bounds = np.searchsorted(place[order], np.arange(0, len(by_size) + _IMAGES, _IMAGES))
        for first, (start, stop) in zip(range(0, len(by_size), _IMAGES), pairwise(bounds.tolist()), strict=False):
            rows = order[start:stop]
            some = references.select(by_size[first : first + _IMAGES])
            scores[rows] = self._score(captions.select(rows), place[rows] - first, some)
        return scores

    def _score(self, captions: Numbered, image: np.ndarray, references: PreparedReferences) -> np.ndarray:
        """The same for few images."""
        said = captions.lengths > 0
        if not said.all():
            scores = np.zeros(len(image))
            if said.any():
                spoken = Numbered(captions.words, captions.lengths[said])
                scores[said] = self._score(spoken, image[said], references)
            return scores
        own = own_counts(captions, len(ORDERS), self._scratch)
        weights = self.frequencies.idf(captions)
        weights *= weights
        inverse = _inverse_norms(captions, weights, own)
        if self.clipped:
            weights /= np.maximum(own, 1)  # each of c equal n-grams has its share
        lanes = Lanes(references.sizes)
        every, starts = Numbered(references.words, references.lengths), captions.starts
        scores = np.zeros((lanes.count, len(image)))
        for n, found in enumerate(occurrences(captions, image, every, references.sizes, len(ORDERS))):
            counted = np.minimum(found, own[n]) if self.clipped else own[n] > 0
            sums = np.add.reduceat(counted * weights[n] * found, starts, axis=1)
            sums *= lanes.spread(references.inverse[:, n]).take(image, axis=1)
            sums *= inverse[n]
            scores += sums
        if self.clipped:
            bigrams = lanes.spread(np.maximum(references.lengths - 1, 0)).take(image, axis=1)
            difference = np.abs(bigrams - np.maximum(captions.lengths - 1, 0))
            penalties = np.exp(-(np.arange(difference.max(initial=0) + 1.0) ** 2) / (2 * SIGMA**2))
            scores *= penalties.take(difference)
        total = np.zeros(len(image))
        for lane in scores:  # one after the other, so that a caption's sum does not depend on the batch's largest image
            total += lane
        return total * (10.0 / len(ORDERS)) / references.sizes[image]


def _inverse_norms(words: Numbered, squares: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``[4, N]``: one over the norms of tf-idf vectors, 0 for 0; each of ``c`` equal n-grams adds ``c`` to the square of
    ``c``."""
    some, starts = words.lengths > 0, words.starts
    if some.all() and len(some):
        norms = np.add.reduceat(squares * counts, starts, axis=1)
    else:
        norms = np.zeros((len(ORDERS), len(some)))
        if some.any():
            norms[:, some] = np.add.reduceat(squares * counts, starts[some], axis=1)
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
    return _by_id(captions, references, frequencies, clipped=True)


def cider(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    frequencies: DocumentFrequencies | None = None,
) -> dict[str, float]:
    """The older CIDEr of every image's caption: the mean cosine of tf-idf vectors, times 10, without clipping and
    without a penalty on length. Not what papers call CIDEr; see ``cider_d``, which takes the same arguments."""
    return _by_id(captions, references, frequencies, clipped=False)


def _by_id(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    frequencies: DocumentFrequencies | None,
    *,
    clipped: bool,
) -> dict[str, float]:
    if not captions:
        return {}
    if frequencies is None and len(references) > len(captions):
        _require_several(len(references))
        frequencies = DocumentFrequencies.from_tokens(references)
    words = None if frequencies is None else frequencies.words
    pairs = Pairs.of([*captions.values()], [references[name] for name in captions], words)
    scores = cider_d_of(pairs, frequencies, clipped=clipped)
    return dict(zip(captions, scores.tolist(), strict=True))


def cider_d_of(pairs: Pairs, frequencies: DocumentFrequencies | None = None, *, clipped: bool = True) -> np.ndarray:
    """``cider_d`` of captions and references that are numbered already.

    Args:
        pairs: of N images; the words of ``frequencies`` have their numbers there.
        frequencies: as for ``cider_d``.
        clipped: False for ``cider``.

    Returns:
        ``[N]`` float64, 0 to 10.

    Raises:
        UsageError: as ``cider_d``.
        ValueError: the words of ``frequencies`` have other numbers.
    """
    if frequencies is not None and any(pairs.words.get(word) != i for word, i in frequencies.words.items()):
        raise ValueError(
            "the words of the document frequencies have other numbers in the captions: number them with these"
        )
    scorer = CiderDScorer(frequencies or _corpus_frequencies(pairs), clipped=clipped)
    scores = np.empty(len(pairs.sizes))
    for some, part in pairs.parts():
        prepared = scorer.prepare_numbered(part.others, part.sizes)
        scores[some] = scorer.score_numbered(part.own, np.arange(len(part.sizes)), prepared)
    return scores


def _corpus_frequencies(pairs: Pairs) -> DocumentFrequencies:
    _require_several(len(pairs.sizes))
    return DocumentFrequencies.from_numbered([*pairs.words][: pairs.known], pairs.others, pairs.sizes)


def _require_several(images: int) -> None:
    if images < 2:
        raise UsageError(
            "CIDEr of one image is 0 whatever the caption, since each of its n-grams is in every image: "
            "score more images together, or give document frequencies."
        )
    if images < FEW_IMAGES:
        logger.warning(
            "CIDEr takes its document frequencies from only %d images: do not compare it with values of larger sets.",
            images,
        )
