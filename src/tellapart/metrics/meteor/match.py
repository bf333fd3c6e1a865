"""All matches of captions with references: words and phrases become numbers once, and what is related is found once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tellapart.metrics.meteor.align import Match
from tellapart.metrics.meteor.resources import Resources

LONGEST = 7
"""Words of the longest phrase in the table."""


@dataclass(frozen=True)
class Sentence:
    """A sentence as numbers.

    Args:
        words: number of each word.
        spans: ``(first word, words, number)`` of each word and of each phrase that has a paraphrase.
        places: number -> ``[(first word, words)]`` of the same.
        function: whether each word is a function word.
    """

    words: list[int]
    spans: list[tuple[int, int, int]]
    places: dict[int, list[tuple[int, int]]]
    function: list[bool]


class Vocabulary:
    """Numbers of the words and phrases of some sentences, and which of them may match.

    Args:
        sentences: lists of words.
        resources: METEOR's data.
    """

    def __init__(self, sentences: Sequence[Sequence[str]], resources: Resources) -> None:
        self._resources = resources
        words = sorted({word for sentence in sentences for word in sentence})
        self._numbers = {word: n for n, word in enumerate(words)}
        phrases = sorted(_phrases(sentences))
        rows = resources.phrase_numbers([*words, *phrases])
        known = [phrase for phrase, row in zip(phrases, rows[len(words) :].tolist(), strict=True) if row >= 0]
        self._numbers |= {phrase: len(words) + n for n, phrase in enumerate(known)}
        rows = np.concatenate([rows[: len(words)], rows[len(words) :][rows[len(words) :] >= 0]])
        self._function = [word in resources.function_words for word in words]
        self._related: dict[int, dict[int, tuple[int, ...]]] = {}
        self._relate_words(words)
        self._relate_phrases(rows)
        related = [phrase for phrase in known if self._numbers[phrase] in self._related]
        self._openings = {tuple(phrase.split(" ", 2)[:2]) for phrase in related}
        for phrase in set(known).difference(related):
            del self._numbers[phrase]

    def sentence(self, words: Sequence[str]) -> Sentence:
        """A sentence of the vocabulary's words as numbers."""
        own = [self._numbers[word] for word in words]
        spans = [(place, 1, number) for place, number in enumerate(own)]
        for start in range(len(words) - 1):
            if (words[start], words[start + 1]) not in self._openings:
                continue
            text = words[start]
            for end in range(start + 1, min(len(words), start + LONGEST)):
                text += f" {words[end]}"
                number = self._numbers.get(text)
                if number is not None:
                    spans.append((start, end + 1 - start, number))
        places: dict[int, list[tuple[int, int]]] = {}
        for start, length, number in spans:
            if number in places:
                places[number].append((start, length))
            else:
                places[number] = [(start, length)]
        return Sentence(own, spans, places, [self._function[number] for number in own])

    def matches(self, caption: Sentence, reference: Sentence) -> list[Match]:
        """All matches, in the order the alignment tries them: by module, length, place in the caption."""
        found: list[tuple[Any, ...]] = []
        places, related = caption.places, self._related
        present = places.keys()
        for start, length, number in reference.spans:
            if length == 1 and number in places:
                found += [(0, 0, 1, other, 1, start) for other, _ in places[number]]
            relations = related.get(number)
            if relations:
                for near in relations.keys() & present:
                    for other, other_length in places[near]:
                        for kind in relations[near]:
                            found.append((min(kind, 3), kind, length, other, other_length, start))
        found.sort()
        return [
            Match(start, length, other, other_length, module) for module, _, length, other, other_length, start in found
        ]

    def _add(self, number: int, other: int, kind: int) -> None:
        row = self._related.setdefault(number, {})
        row[other] = (*row.get(other, ()), kind)

    def _relate_words(self, words: list[str]) -> None:
        """Equal stems (1) and common synsets (2) of different words."""
        from nltk.stem.snowball import SnowballStemmer

        stem = SnowballStemmer("english").stem
        groups: dict[str, list[int]] = {}
        for number, word in enumerate(words):
            groups.setdefault(stem(word), []).append(number)
        self._relate_groups(groups.values(), 1)
        shared: dict[int, list[int]] = {}
        for number, synsets in enumerate(self._resources.synset_sets(words)):
            for synset in synsets:
                shared.setdefault(synset, []).append(number)
        self._relate_groups(shared.values(), 2)

    def _relate_groups(self, groups: Any, kind: int) -> None:
        for first, second in {(a, b) for group in groups if len(group) > 1 for a in group for b in group if a != b}:
            self._add(first, second, kind)

    def _relate_phrases(self, rows: np.ndarray) -> None:
        """Paraphrases: 3 for a line of the table that has the reference's phrase first, 4 for one that has it second."""
        resources = self._resources
        numbers = np.flatnonzero(rows >= 0)
        if not len(numbers):
            return
        table_rows = rows[numbers]
        back = np.full(len(resources.phrases), -1, np.int32)
        back[table_rows] = numbers
        first = np.asarray(resources.starts[table_rows], np.int64)
        sizes = np.asarray(resources.starts[table_rows + 1]) - first
        owners = np.repeat(numbers, sizes)
        places = np.arange(len(owners)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
        near = np.asarray(resources.neighbours[places])
        other = back[near >> 1]
        kept = other >= 0
        for number, target, kind in zip(
            owners[kept].tolist(), other[kept].tolist(), (3 + (near[kept] & 1)).tolist(), strict=True
        ):
            if number != target:
                self._add(number, target, kind)


def _phrases(sentences: Sequence[Sequence[str]]) -> set[str]:
    found: set[str] = set()
    for words in sentences:
        for start in range(len(words) - 1):
            text = words[start]
            for end in range(start + 1, min(len(words), start + LONGEST)):
                text += f" {words[end]}"
                found.add(text)
    return found
