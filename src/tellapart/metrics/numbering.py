"""Numbers of the words of raw captions: those of the tokenizer, without tokenizing what was seen before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, repeat
from threading import Lock

import numpy as np

from tellapart.metrics.ngrams import Numbered
from tellapart.metrics.ptb import ptb_tokenize

_PLAIN = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*[,.]?").fullmatch
_BREAK = "\n"
"""Separates captions; a caption with a line break is tokenized."""
_UNKNOWN, _SEPARATOR, _PAIRS, _DOTTED = -1, -2, 1 << 29, 1 << 30


class WordNumbers:
    """Numbers the words that ``ptb_tokenize`` finds in captions, each read alone.

    Most captions consist of letters, apostrophes and hyphens with spaces between them. The text between two spaces is then
    one word or two ("man's"), whatever is next to it, so that its number can be looked up. Captions with anything else, or
    with a word that is met for the first time, are tokenized.

    Args:
        vocabulary: word -> its number, from 0 on. It grows by ``number`` only where that is asked for. Its words are known
            from the start, also with a final dot.

    Example::

        numbers = WordNumbers({"a": 0, "dog": 1})
        numbers.number(["A dog.", "a cat"])  # words [0, 1, 0, n] with n above 1, lengths [2, 2]
        numbers.vocabulary  # {"a": 0, "dog": 1}: the cat was not added
    """

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary
        self._pieces = {_BREAK: _SEPARATOR}
        """Text between spaces -> the number of its only word, or ``_PAIRS + n`` where it is pair n of words; plus ``_DOTTED``
        where it may only be last."""
        self._pairs: list[tuple[int, int]] = []
        self._growing = Lock()
        self._learn([f"{word} {word}." for word in vocabulary if word.isalpha()])

    def number(self, captions: Sequence[str], *, closing: Sequence[str] = (), add: bool = False) -> Numbered:
        """The words of captions as numbers. Words outside the vocabulary get numbers above it, good for this call only.

        Args:
            captions: raw text.
            closing: for each caption a word that is put behind it, "" for none; none at all by default.
            add: give new words a number in the vocabulary.
        """
        if not captions:
            return Numbered(np.empty(0, np.int32), np.empty(0, np.int64))
        texts = f" {_BREAK} ".join(map(str.strip, captions)).split(" ")
        texts.append(_BREAK)
        found = np.fromiter(map(self._pieces.get, texts, repeat(_UNKNOWN)), np.int32, len(texts))
        if np.count_nonzero(found == _SEPARATOR) != len(captions):  # some captions have line breaks
            return self._tokenized(captions, closing, add)
        new = np.flatnonzero(found == _UNKNOWN)
        if len(new):  # often a known word with a capital or a comma, which costs less than tokenizing the caption
            pieces = [texts[place] for place in new.tolist()]
            self._learn(pieces)
            found[new] = [self._pieces.get(piece, _UNKNOWN) for piece in pieces]
        dotted = np.flatnonzero(found >= _DOTTED)
        misplaced = dotted[found[dotted + 1] != _SEPARATOR]
        found[dotted] -= _DOTTED
        found[misplaced] = _UNKNOWN
        pairs = np.flatnonzero(found >= _PAIRS)
        if len(pairs):
            first, second = np.array(self._pairs, np.int32)[found[pairs] - _PAIRS].T
            found[pairs] = first
            found = np.insert(found, pairs + 1, second)
        breaks = np.flatnonzero(found == _SEPARATOR)
        lengths = np.diff(breaks, prepend=-1)  # the break included
        kept = np.ones(len(found), np.bool_)
        self._close(found, breaks, closing, kept, add)
        slow = np.zeros(len(captions), np.bool_)
        slow[np.searchsorted(breaks, np.flatnonzero(found == _UNKNOWN))] = True
        if not slow.any():
            return Numbered(found[kept], lengths - ~kept[breaks])
        which = np.flatnonzero(slow).tolist()
        rest = self._tokenized(
            [captions[row] for row in which], [closing[row] for row in which] if len(closing) else (), add
        )
        kept[np.repeat(slow, lengths)] = False
        lengths -= ~kept[breaks]
        lengths[slow] = rest.lengths
        words = np.empty(int(lengths.sum()), np.int32)
        of_slow = np.repeat(slow, lengths)
        words[of_slow], words[~of_slow] = rest.words, found[kept]
        return Numbered(words, lengths)

    def _close(
        self, found: np.ndarray, breaks: np.ndarray, closing: Sequence[str], kept: np.ndarray, add: bool
    ) -> None:
        """Put closing words in the places of the breaks, and leave out the breaks of captions without one."""
        if not len(closing):
            kept[breaks] = False
            return
        numbers = {word: self._known(word, add) if word else _SEPARATOR for word in set(closing)}
        found[breaks] = [numbers[word] for word in closing]
        kept[breaks] = found[breaks] != _SEPARATOR

    def _known(self, word: str, add: bool) -> int:
        if not add:
            return self.vocabulary.get(word, _UNKNOWN)
        with self._growing:
            return self.vocabulary.setdefault(word, len(self.vocabulary))

    def _tokenized(self, captions: Sequence[str], closing: Sequence[str], add: bool) -> Numbered:
        """The same by the tokenizer."""
        rows = [text.split() for text in ptb_tokenize(captions, alone=True)]
        if len(closing):
            rows = [[*row, word] if word else row for row, word in zip(rows, closing, strict=True)]
        numbers, vocabulary = dict[str, int](), self.vocabulary
        with self._growing:  # two threads would give one number to two words
            for word in dict.fromkeys(chain.from_iterable(rows)):
                number = vocabulary.get(word)
                if number is None and add:
                    number = vocabulary[word] = len(vocabulary)
                numbers[word] = len(vocabulary) + len(numbers) if number is None else number
        self._learn(captions)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = map(numbers.__getitem__, chain.from_iterable(rows))
        return Numbered(np.fromiter(flat, np.int32, int(lengths.sum())), lengths)

    def _learn(self, captions: Sequence[str]) -> None:
        """Keep text between spaces that is one word or two of the vocabulary, at any position."""
        for piece in set(chain.from_iterable(text.split(" ") for text in captions)):
            if piece in self._pieces or not _PLAIN(piece):
                continue
            words = ptb_tokenize([piece], alone=True)[0].split()
            numbers = [number for word in words if (number := self.vocabulary.get(word)) is not None]
            if not len(numbers) == len(words) <= 2 or "".join(words) != piece.rstrip(",.").lower():
                continue
            with self._growing:
                code = numbers[0]
                if len(words) == 2:
                    code = _PAIRS + len(self._pairs)
                    self._pairs.append((numbers[0], numbers[1]))
                self._pieces[piece] = code + _DOTTED if piece[-1] == "." else code
