"""Captions spoilt on purpose, which teach a model what is not a sentence (Cho et al., Findings of NAACL 2022, section 3.2).

*Fine-grained Image Captioning with CLIP Reward* trains a head to tell captions from these. Words are the text between
spaces; the same generator and vocabulary always give the same text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

MOST = 3
"""Longest n-gram that is repeated or removed, most repeats of it, and most words inserted or replaced."""


class Corrupted(NamedTuple):
    """A spoilt text, and how it was spoilt (a key of ``CORRUPTIONS``)."""

    text: str
    kind: str


def repeat(words: Sequence[str], rng: np.random.Generator, vocabulary: Sequence[str]) -> list[str] | None:
    """An n-gram of 1 to 3 words inserted 1 to 3 times, each time anywhere; None if there are no words."""
    if not words:
        return None
    start, stop = _ngram(len(words), MOST, rng)
    spoilt = list(words)
    for _ in range(rng.integers(1, MOST + 1)):
        at = int(rng.integers(len(spoilt) + 1))
        spoilt[at:at] = words[start:stop]
    return spoilt


def remove(words: Sequence[str], rng: np.random.Generator, vocabulary: Sequence[str]) -> list[str] | None:
    """The words without an n-gram of 1 to 3 of them, at least one word being left; None if there are fewer than two."""
    if len(words) < 2:
        return None
    start, stop = _ngram(len(words), min(MOST, len(words) - 1), rng)
    return [*words[:start], *words[stop:]]


def insert(words: Sequence[str], rng: np.random.Generator, vocabulary: Sequence[str]) -> list[str] | None:
    """1 to 3 words of the vocabulary put in, each anywhere."""
    spoilt = list(words)
    for _ in range(rng.integers(1, MOST + 1)):
        spoilt.insert(int(rng.integers(len(spoilt) + 1)), _any(vocabulary, rng))
    return spoilt


def swap(words: Sequence[str], rng: np.random.Generator, vocabulary: Sequence[str]) -> list[str] | None:
    """1 to 3 words, in different places, replaced by others of the vocabulary; None if it has no others."""
    if not words:
        return None
    spoilt = list(words)
    for at in rng.choice(len(words), size=int(rng.integers(1, min(MOST, len(words)) + 1)), replace=False):
        while spoilt[at] == words[at] and list(vocabulary) != [words[at]]:
            spoilt[at] = _any(vocabulary, rng)
    return spoilt if spoilt != list(words) else None


def shuffle(words: Sequence[str], rng: np.random.Generator, vocabulary: Sequence[str]) -> list[str] | None:
    """The words in another order; None if all orders are alike."""
    if len(set(words)) < 2:
        return None
    spoilt = list(words)
    while spoilt == list(words):
        spoilt = [words[i] for i in rng.permutation(len(words))]
    return spoilt


CORRUPTIONS: dict[str, Callable[[Sequence[str], np.random.Generator, Sequence[str]], list[str] | None]] = {
    "repeat": repeat,
    "remove": remove,
    "insert": insert,
    "swap": swap,
    "shuffle": shuffle,
}
"""Name -> ``(words, generator, vocabulary) -> other words``, or None where these words cannot be spoilt so."""


def corrupt(text: str, rng: np.random.Generator, vocabulary: Sequence[str]) -> Corrupted:
    """A text spoilt in one of the five ways, each as likely as the others; its words always differ from the text's.

    A way that is impossible (one word has no other order, and nothing to remove) gives place to one that is possible, again
    each as likely. Nothing asks whether the result happens to be a sentence after all: "two dogs" without "two" is one.

    Args:
        text: words between spaces.
        rng: decides everything.
        vocabulary: distinct words to insert, at least one.

    Raises:
        ValueError: the vocabulary is empty.
    """
    if not vocabulary:
        raise ValueError("corruptions need a vocabulary of at least one word")
    words, kinds = text.split(), list(CORRUPTIONS)
    while True:
        kind = kinds.pop(int(rng.integers(len(kinds))))
        spoilt = CORRUPTIONS[kind](words, rng, vocabulary)  # inserting is always possible
        if spoilt is not None:
            return Corrupted(" ".join(spoilt), kind)


def vocabulary_of(texts: Iterable[str], *, min_count: int = 1) -> list[str]:
    """The distinct words of ``texts`` in alphabetical order.

    Args:
        texts: words between spaces.
        min_count: only words that occur so often (Cho et al. leave out those of five or fewer).
    """
    counts = Counter(word for text in texts for word in text.split())
    return sorted(word for word, count in counts.items() if count >= min_count)


def _any(vocabulary: Sequence[str], rng: np.random.Generator) -> str:
    return vocabulary[int(rng.integers(len(vocabulary)))]


def _ngram(length: int, longest: int, rng: np.random.Generator) -> tuple[int, int]:
    """Where an n-gram of at most ``longest`` words begins and ends."""
    size = int(rng.integers(1, min(longest, length) + 1))
    start = int(rng.integers(length - size + 1))
    return start, start + size
