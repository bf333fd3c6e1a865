"""N-grams of captions: counted in dictionaries, and numbered in arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

Ngram = tuple[str, ...]


def ngram_counts(words: Sequence[str], order: int) -> dict[Ngram, int]:
    """How often each n-gram of ``order`` words occurs, in order of first occurrence."""
    counts: dict[Ngram, int] = {}
    for gram in zip(*[words[start:] for start in range(order)], strict=False):
        counts[gram] = counts.get(gram, 0) + 1
    return counts


class Numbered(NamedTuple):
    """Captions as numbers: equal words have equal numbers.

    Args:
        words: ``[T]`` int32, the words of all captions in a row.
        lengths: ``[N]`` int64, words of each caption.
    """

    words: np.ndarray
    lengths: np.ndarray

    def select(self, captions: np.ndarray) -> Numbered:
        """Some of the captions, in that order."""
        return Numbered(self.words[self.places(captions)], self.lengths[captions])

    def places(self, captions: np.ndarray) -> np.ndarray:
        """Positions in ``words`` of the words of some captions, one caption after the other."""
        lengths = self.lengths[captions]
        ends = np.cumsum(lengths)
        return np.repeat(self.starts[captions] - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)

    @property
    def starts(self) -> np.ndarray:
        """``[N]``: where each caption begins in ``words``."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def owners(self) -> np.ndarray:
        """``[T]``: which caption each word belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def remaining(self) -> np.ndarray:
        """``[T]``: words from here to the end of the caption, this one included."""
        return np.repeat(np.cumsum(self.lengths), self.lengths) - np.arange(len(self.words))


class GrowingVocabulary(dict[str, int]):
    """Word -> its number; a word that is looked up for the first time gets the next one."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def number_words(captions: Sequence[Sequence[str]], vocabulary: Mapping[str, int]) -> Numbered:
    """Number the words of captions. Words outside the vocabulary get numbers above it, good for this call only.

    Args:
        captions: lists of words.
        vocabulary: word -> its number, from 0 on; it stays as it is unless it is a growing one.
    """
    flat = list(chain.from_iterable(captions))
    lengths = np.fromiter(map(len, captions), np.int64, len(captions))
    try:
        return Numbered(np.fromiter(map(vocabulary.__getitem__, flat), np.int32, len(flat)), lengths)
    except KeyError:  # the rarer and slower way
        extra = {word: len(vocabulary) + i for i, word in enumerate(dict.fromkeys(flat).keys() - vocabulary.keys())}
    numbers = [number if (number := vocabulary.get(word)) is not None else extra[word] for word in flat]
    return Numbered(np.array(numbers, np.int32), lengths)


def number_all(captions: Sequence[Sequence[Hashable]]) -> Numbered:
    """Number the words of captions from 0 on, in the order in which they occur first."""
    return number_words(captions, GrowingVocabulary())  # type: ignore[arg-type]  # any words can be numbered


def add_words(vocabulary: dict[str, int], captions: Sequence[Sequence[str]]) -> None:
    """Give the words of captions that the vocabulary lacks the next numbers."""
    for word in dict.fromkeys(chain.from_iterable(captions)):
        vocabulary.setdefault(word, len(vocabulary))


def numbered_ngrams(captions: Numbered, orders: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each order from 1 on: a number for every n-gram (equal for equal ones) and the caption it is in.

    Numbers are dense and those of an order are its own. They are exact, not hashes: an n-gram is the pair of the number
    of its first n-1 words and its last word.

    Yields:
        ``(ngrams, owners)``, both ``[occurrences]``, in the order of the text.
    """
    owners, remaining = captions.owners, captions.remaining
    places = np.arange(len(captions.words))
    distinct, ngrams = np.unique(captions.words, return_inverse=True)
    words, size = ngrams.astype(np.int64), len(distinct)
    yield ngrams, owners
    for order in range(2, orders + 1):
        longer = remaining[places] >= order
        places, prefix = places[longer], ngrams[longer]
        _, ngrams = np.unique(prefix * size + words[places + order - 1], return_inverse=True)
        yield ngrams, owners[places]
