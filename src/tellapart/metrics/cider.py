"""CIDEr-D: consensus with human captions (Vedantam, Zitnick, Parikh 2015, section 4 and the "-D" variant of 4.1).

The values are those of coco-caption's scorer, which calls CIDEr what the paper calls CIDEr-D: tf-idf vectors of 1- to
4-grams, the caption's weights clipped at the reference's, a Gaussian penalty (sigma 6) on the difference in length, ten
times the mean over orders and references. The scale is 0 to 10; papers print it times 100, so that their "120" is 1.2
here. As in coco-caption the penalty compares numbers of *bigrams*, which is the difference in words except for the
empty caption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tellapart.metrics.ngrams import Ngram, ngram_counts
from tellapart.metrics.tokenizer import tokenize

ORDERS = (1, 2, 3, 4)
SIGMA = 6.0
END = "<end of caption>"
"""The token that closes a finished caption where the end is to count; it has spaces, so no tokenised word equals it."""


@dataclass(frozen=True)
class DocumentFrequencies:
    """In the references of how many images each n-gram occurs.

    N-grams of a single image are left out: they weigh exactly as much as n-grams never seen (idf = log of the number of
    images), and they are three quarters of the table. Scoring never adds to it.

    Args:
        counts: n-gram -> number of images, where at least 2.
        images: number of images counted.
        end: token that closes every reference (and every finished caption scored with these counts); "" for none.
    """

    counts: Mapping[Ngram, int]
    images: int
    end: str = ""
    logs: Mapping[Ngram, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "logs", {gram: math.log(count) for gram, count in self.counts.items()})

    @classmethod
    def from_references(cls, references: Mapping[str, Sequence[str]], *, end: str = END) -> DocumentFrequencies:
        """Count raw references (image id -> captions), tokenised here and, by default, closed by ``end``: for a
        reward."""
        return cls.from_tokens({name: tokenize(captions) for name, captions in references.items()}, end=end)

    @classmethod
    def from_tokens(cls, references: Mapping[str, Sequence[str]], *, end: str = "") -> DocumentFrequencies:
        """Count references that are tokenised already; without an end token this is the metric's "corpus" mode."""
        counts: dict[Ngram, int] = {}
        closing = [end] if end else []
        for captions in references.values():
            seen: set[Ngram] = set()
            for caption in captions:
                words = caption.split() + closing
                for order in ORDERS:
                    seen.update(zip(*(words[start:] for start in range(order)), strict=False))
            for gram in seen:
                counts[gram] = counts.get(gram, 0) + 1
        return cls({gram: count for gram, count in counts.items() if count > 1}, len(references), end)


@dataclass(frozen=True, slots=True)
class PreparedReferences:
    """One image's references, ready to be compared with many captions.

    Args:
        postings: n-gram -> (its idf, ``(reference, weight)`` of every reference it occurs in).
        norms: for each order, the norm of every reference's vector.
        lengths: bigrams of each reference.
    """

    postings: dict[Ngram, tuple[float, list[tuple[int, float]]]]
    norms: list[list[float]]
    lengths: list[int]


class CiderDScorer:
    """CIDEr-D under fixed document frequencies, on lists of words.

    Args:
        frequencies: of n-grams in references; corpus references for the metric, training references for a reward.
    """

    def __init__(self, frequencies: DocumentFrequencies) -> None:
        self.frequencies = frequencies
        self._log_images = math.log(max(frequencies.images, 1))

    def prepare(self, references: Sequence[Sequence[str]]) -> PreparedReferences:
        """The tf-idf vectors of one image's references."""
        logs, top = self.frequencies.logs, self._log_images
        postings: dict[Ngram, tuple[float, list[tuple[int, float]]]] = {}
        norms: list[list[float]] = [[] for _ in ORDERS]
        for index, words in enumerate(references):
            for order, order_norms in zip(ORDERS, norms, strict=True):
                squares = 0.0
                for gram, count in ngram_counts(words, order).items():
                    posting = postings.get(gram)
                    if posting is None:
                        posting = postings[gram] = (top - logs.get(gram, 0.0), [])
                    weight = count * posting[0]
                    squares += weight * weight
                    posting[1].append((index, weight))
                order_norms.append(math.sqrt(squares))
        return PreparedReferences(postings, norms, [max(len(words) - 1, 0) for words in references])

    def score(self, words: Sequence[str], references: PreparedReferences) -> float:
        """CIDEr-D of one caption against one image's references, 0 to 10."""
        logs, top, postings = self.frequencies.logs, self._log_images, references.postings
        similarity = [0.0] * len(references.lengths)
        for order, order_norms in zip(ORDERS, references.norms, strict=True):
            squares = 0.0
            products: dict[int, float] = {}
            for gram, count in ngram_counts(words, order).items():
                found = postings.get(gram)
                if found is None:
                    squares += (count * (top - logs.get(gram, 0.0))) ** 2
                    continue
                weight = count * found[0]
                squares += weight * weight
                for index, theirs in found[1]:
                    products[index] = products.get(index, 0.0) + (weight if weight < theirs else theirs) * theirs
            if not products:
                break  # no n-gram in common: no longer one can be
            norm = math.sqrt(squares)
            for index, product in products.items():
                if product:  # else its norm may be 0 too
                    similarity[index] += product / (norm * order_norms[index])
        length = max(len(words) - 1, 0)
        penalised = (
            value * math.exp(-((length - theirs) ** 2) / (2 * SIGMA**2))
            for value, theirs in zip(similarity, references.lengths, strict=True)
        )
        return 10.0 * sum(penalised) / (len(ORDERS) * len(similarity))


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
    """
    scorer = CiderDScorer(frequencies or DocumentFrequencies.from_tokens(references))
    return {
        name: scorer.score(caption.split(), scorer.prepare([reference.split() for reference in references[name]]))
        for name, caption in captions.items()
    }
