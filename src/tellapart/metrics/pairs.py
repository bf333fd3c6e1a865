"""Captions with their references, split into words and numbered once for all n-gram metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from tellapart.metrics.ngrams import GrowingVocabulary, Numbered, number_words

T = TypeVar("T")

_AT_ONCE = 5000
"""Images whose captions are split into words, or compared, together: the words of all at once would be large."""


class Pairs(NamedTuple):
    """N captions and the references of each.

    Args:
        own: the captions.
        others: the references, those of an image one after the other.
        sizes: ``[N]`` int64, references of each image, at least one.
        words: word -> its number, from 0 on: given words first, then those of references, then those of captions only.
        known: how many of ``words`` come before those of captions only.
        plain: ``[N]`` whether single spaces are all the white space of a caption and its references, and none of these is empty.
    """

    own: Numbered
    others: Numbered
    sizes: np.ndarray
    words: Mapping[str, int]
    known: int
    plain: np.ndarray

    @staticmethod
    def of(
        captions: Sequence[str], references: Sequence[Sequence[str]], words: Mapping[str, int] | None = None
    ) -> Pairs:
        """Split at white space.

        Args:
            captions: N tokenised captions.
            references: N lists of tokenised references.
            words: those that have numbers already, from 0 on.

        Raises:
            ValueError: an image has no reference, or there are more of the ones than of the others.
        """
        if len(captions) != len(references):
            raise ValueError(f"{len(captions)} captions are compared with references of {len(references)} images")
        sizes = np.fromiter(map(len, references), np.int64, len(references))
        if not sizes.all():
            raise ValueError("captions are compared with references, but an image has none")
        numbers = GrowingVocabulary(words or {})
        others, plain = _numbered((list(chain.from_iterable(some)) for some in _parts(references)), numbers)
        known = len(numbers)
        own, own_plain = _numbered(_parts(captions), numbers)
        plain = np.logical_and.reduceat(plain, np.cumsum(sizes) - sizes) if len(sizes) else plain
        return Pairs(own, others, sizes, dict(numbers), known, plain & own_plain)

    def parts(self, images: int = 0) -> Iterator[tuple[slice, Pairs]]:
        """Which captions, and the same of these only, for some images at a time; by default for many."""
        images = images or _AT_ONCE
        ends = np.append(0, np.cumsum(self.sizes))
        words, more = (np.append(0, np.cumsum(numbered.lengths)) for numbered in (self.own, self.others))
        for start in range(0, len(self.sizes), images):
            some = slice(start, min(start + images, len(self.sizes)))
            of_these = slice(ends[some.start], ends[some.stop])
            own = Numbered(self.own.words[words[some.start] : words[some.stop]], self.own.lengths[some])
            others = Numbered(
                self.others.words[more[of_these.start] : more[of_these.stop]], self.others.lengths[of_these]
            )
            yield some, self._replace(own=own, others=others, sizes=self.sizes[some], plain=self.plain[some])


def _parts(texts: Sequence[T]) -> Iterator[Sequence[T]]:
    return (texts[start : start + _AT_ONCE] for start in range(0, len(texts), _AT_ONCE))


def _numbered(parts: Iterator[Sequence[str]], vocabulary: GrowingVocabulary) -> tuple[Numbered, np.ndarray]:
    """Texts as numbers, and whether each is words with single spaces between them."""
    found, plain = [Numbered(np.empty(0, np.int32), np.empty(0, np.int64))], [np.empty(0, np.bool_)]
    for texts in parts:
        rows = [text.split() for text in texts]
        found.append(number_words(rows, vocabulary))
        plain.append(np.fromiter(map(str.__eq__, texts, map(" ".join, rows)), np.bool_, len(rows)))
    numbered = Numbered(*map(np.concatenate, zip(*found, strict=True)))
    return numbered, np.concatenate(plain) & (numbered.lengths > 0)
