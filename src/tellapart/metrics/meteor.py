"""METEOR 1.5 without Java (Banerjee & Lavie 2005; Lavie & Agarwal 2007; Denkowski & Lavie 2014): English, ranking task.

Words are cut as its ``-norm`` does, related words of caption and reference are matched, the best of these matches are aligned,
and the score follows from the statistics of the alignment. What it knows of English is in ``tellapart.metrics.meteor_data``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import permutations
from operator import itemgetter, or_
from typing import NamedTuple

import numpy as np

from tellapart.metrics.meteor_data import Resources, load_resources

# Words of a sentence as METEOR's ``-norm`` cuts them: the rules of the Moses tokenizer for English, in lower case.
#
# The rules of meteor-1.5.jar, in its order. Several oddities are its own, because a match uses up the characters it read:
# of "a,b,c" only the first comma is cut off, of "2-3-4" only the first hyphen becomes a space. A word with dots inside
# loses all its dots ("t.v." is "tv"); any other final dot is cut off unless the word is an abbreviation or the next word
# begins in lower case.

_PLAIN = re.compile(r"[a-z0-9 ]*").fullmatch
_LETTERS = "a-zß-öø-\u017e\u0400-\u0527\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
_LETTER = f"[{_LETTERS}]"
_NO_LETTER = f"[^{_LETTERS}]"
_RULES = tuple(
    (re.compile(pattern), written)
    for pattern, written in (
        (rf"([^{_LETTERS}0-9 \t\n\v\f\r.'`,\-‘’])", r" \1 "),
        (r"(\.\.+)", r" \1 "),
        (r"([^0-9]),([^0-9])", r"\1 , \2"),
        (r"([0-9]),([^0-9])", r"\1 , \2"),
        (r"([^0-9]),([0-9])", r"\1 , \2"),
        (r"[`‘’]", "'"),
        (r"[“”]|''", ' " '),
        (r"–", "-"),
        (r"--", "-"),
        (rf"([{_LETTERS}0-9.])-([{_LETTERS}0-9])", r"\1 \2"),
        (rf"({_NO_LETTER})'({_NO_LETTER})", r"\1 ' \2"),
        (rf"([^{_LETTERS}0-9])'({_LETTER})", r"\1 ' \2"),
        (rf"({_LETTER})'({_NO_LETTER})", r"\1 ' \2"),
        (rf"({_LETTER})'({_LETTER})", r"\1 '\2"),
        (r"([0-9])'(s)", r"\1 '\2"),
    )
)
_SPLIT = re.compile(r"[ \t\n\f\r]+").split
_BLANK = frozenset("\xa0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000")
"""Spaces that are words of their own until the end."""
_LETTER_IN = re.compile(_LETTER).search
_LOWER, _DIGIT = frozenset("abcdefghijklmnopqrstuvwxyz"), frozenset("0123456789")
PREFIXES = frozenset(("v", "vs", "rev"))
"""Words that keep a dot behind them; the others in the reference's list are capitalised, which lower-cased words never
are, or have a dot inside."""
BEFORE_NUMBERS = frozenset(("pp",))
"""Words that keep it before a number."""


def normalise(sentence: str) -> list[str]:
    """The words of a sentence."""
    text = sentence.lower()
    if _PLAIN(text):
        return text.split()
    text = f" {text} "
    for pattern, written in _RULES:
        text = pattern.sub(written, text)
    words = [word for word in _SPLIT(text) if word]
    found: list[str] = []
    for n, word in enumerate(words):
        if word not in _BLANK:
            found += _cut_dot(word, words[n + 1][0] if n + 1 < len(words) else "")
    return found


def _cut_dot(word: str, following: str) -> list[str]:
    """The word, with a dot that ends a sentence as a word of its own; ``following`` is the next word's first character."""
    stem = word[:-1]
    if word[-1] != "." or stem.strip(".") == "":
        return [word]
    if "." in stem and _LETTER_IN(stem):
        return [word.replace(".", "")]
    keeps = stem in PREFIXES or following in _LOWER or (stem in BEFORE_NUMBERS and following in _DIGIT)
    return [word] if keeps else [stem, "."]


# Which words of a caption match which words of a reference: METEOR's alignment, with its beam.
#
# Denkowski & Lavie (2014), section 2: of all matches choose those that cover most words, in fewest chunks, at the most
# similar places. How meteor-1.5.jar weighs and searches this:
#
# - A match that overlaps no other is taken at once.
# - Places of the reference are visited from left to right; at each, a path takes one of the matches that begin there
#   or continues without. The best 40 paths are kept, in the order they were made where they are equal.
# - A path is better if it covers more: each side of an exact match counts its word, each side of another match half its
#   words, rounded down. The weights of the score do not matter here. Then if fewer chunks have ended. Then if it passed
#   over less: each match that a path could have had at a place, and that stands before the one it took, costs the
#   distance of its two places.
# - So of equal paths the one whose matches are tried first is the alignment. Matches of a place are tried by module:
#   exact, stem, synonym, paraphrase; the first three by place in the caption. Paraphrases come as the two directions of
#   the table are read. First the lines whose left phrase begins at this place of the reference, shortest phrase first,
#   then in the order of the lines, each at all places of the caption. Then the lines whose left phrase is in the
#   caption, by its place there, shortest phrase first, then in the order of the lines.

BEAM = 40
WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""Of exact, stem, synonym and paraphrase matches, in the score."""


class Match(NamedTuple):
    """Words of the reference that match words of the caption.

    Args:
        start: first word in the reference.
        length: words there.
        other: first word in the caption.
        other_length: words there.
        module: 0 exact, 1 stem, 2 synonym, 3 paraphrase.
    """

    start: int
    length: int
    other: int
    other_length: int
    module: int


# (-covered, chunks that ended, passed over, next free place, where an open chunk would continue or -1, words used, matches)
Path = tuple[int, int, int, int, int, int, tuple[Match, ...]]
_RANK = itemgetter(0, 1, 2)


def align(matches: Sequence[Match], words: int) -> list[Match]:
    """The alignment.

    Args:
        matches: all that could be, those of one place in the order they are tried.
        words: of the reference.
    """
    fixed, free = _split(matches)
    if not free:
        return fixed
    at: dict[int, list[tuple[Match, int]]] = {}
    for match in free:
        at.setdefault(match.start, []).append((match, _bits(match)))
    certain = {match.start: match for match in fixed}
    used = reduce(or_, map(_bits, fixed), 0)
    paths: list[Path] = [(0, 0, 0, 0, -1, used, ())]
    settled = False
    for place in range(words):
        here, options = certain.get(place), at.get(place, ())
        idle = here is None and not options
        if idle and settled:
            continue
        settled = idle and all(path[3] <= place for path in paths)
        if here is not None:
            paths = [_take(path, here, 0, path[2]) for path in paths]
        else:
            paths = _extend(paths, place, options)
        if len(paths) > 1:
            paths.sort(key=_RANK)
            del paths[BEAM:]
    best = min(paths, key=lambda path: (path[0], path[1] + (path[4] >= 0), path[2]))
    return sorted(best[6])


def _bits(match: Match) -> int:
    """The words of the caption that a match takes, a bit each."""
    return ((1 << match.other_length) - 1) << match.other


def _extend(paths: list[Path], place: int, options: Sequence[tuple[Match, int]]) -> list[Path]:
    """Every path with each match it can take here, and without any."""
    found: list[Path] = []
    for path in paths:
        covered, chunks, passed, free, end, used, taken = path
        if free > place:
            found.append(path)
            continue
        for match, bits in options:
            if not used & bits:
                found.append(_take(path, match, bits, passed))
                passed += abs(match.start - match.other)
        found.append((covered, chunks + (end >= 0), passed, free, -1, used, taken))
    return found


def _take(path: Path, match: Match, bits: int, passed: int) -> Path:
    covered, chunks, _, _, end, used, taken = path
    start, length, other, other_length, module = match
    value = length // 2 + other_length // 2 if module else length + other_length
    chunks += end >= 0 and end != other
    after = other + other_length
    return covered - value, chunks, passed, start + length, after, used | bits, (*taken, match)


def _split(matches: Sequence[Match]) -> tuple[list[Match], list[Match]]:
    """The matches that overlap no other, and the others."""
    left: dict[int, int] = {}
    right: dict[int, int] = {}
    for start, length, other, other_length, _ in matches:
        for place in range(start, start + length):
            left[place] = left.get(place, 0) + 1
        for place in range(other, other + other_length):
            right[place] = right.get(place, 0) + 1
    fixed: list[Match] = []
    free: list[Match] = []
    for match in matches:
        start, length, other, other_length, _ = match
        alone = all(left[place] == 1 for place in range(start, start + length)) and all(
            right[place] == 1 for place in range(other, other + other_length)
        )
        (fixed if alone else free).append(match)
    return sorted(fixed), free


def count_chunks(alignment: Sequence[Match]) -> int:
    """Runs of matches that are adjacent on both sides."""
    chunks, expected = 0, (-1, -1)
    for start, length, other, other_length, _ in alignment:
        chunks += (start, other) != expected
        expected = (start + length, other + other_length)
    return chunks


# All matches of captions with references: words and phrases become numbers once, and what is related is found once.

LONGEST = 7
"""Words of the longest phrase in the table."""


@dataclass(frozen=True)
class Sentence:
    """A sentence as numbers.

    Args:
        words: number of each word.
        codes: hash code of each word, which is what the reference compares.
        spans: ``(first word, words, number)`` of each word and of each phrase that has a paraphrase.
        places: number -> ``[(first word, words)]`` of the same.
        function: whether each word is a function word.
    """

    words: list[int]
    codes: list[int]
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
        self._codes = [java_hash(word) for word in words]
        self._related: dict[int, dict[int, tuple[tuple[int, int], ...]]] = {}
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
        codes = [self._codes[number] for number in own]
        return Sentence(own, codes, spans, places, [self._function[number] for number in own])

    def matches(self, caption: Sentence, reference: Sentence) -> list[Match]:
        """All matches, those of one place of the reference in the order the alignment tries them.

        A caption that is its reference has exact matches only, each word with itself: no other alignment is better.
        """
        if caption.codes == reference.codes:
            return [Match(place, 1, place, 1, 0) for place in range(len(caption.codes))]
        found: list[tuple[int, ...]] = []
        places, related = caption.places, self._related
        present = places.keys()
        for start, length, number in reference.spans:
            if length == 1 and number in places:
                found += [(0, other, 0, 0, start, 1, other, 1) for other, _ in places[number]]
            relations = related.get(number)
            if relations:
                for near in relations.keys() & present:
                    for other, size in places[near]:
                        for kind, line in relations[near]:
                            found.append((kind, *_order(kind, line, length, other, size), start, length, other, size))
        found.sort()
        return [Match(start, length, other, size, min(kind, 3)) for kind, _, _, _, start, length, other, size in found]

    def _add(self, number: int, other: int, kind: int, line: int = 0) -> None:
        row = self._related.setdefault(number, {})
        row[other] = (*row.get(other, ()), (kind, line))

    def _relate_words(self, words: list[str]) -> None:
        """Equal hash codes (0), equal stems (1) and common synsets (2) of different words."""
        synsets = self._resources.synset_sets(words)
        self._relate_groups(0, [[code] for code in self._codes])
        self._relate_groups(1, [[java_hash(stem(word))] for word in words])
        self._relate_groups(2, synsets)

    def _relate_groups(self, kind: int, groups: Sequence[Iterable[int]]) -> None:
        """Words with a group in common; those with equal codes match exactly and never otherwise."""
        members: dict[int, list[int]] = {}
        for number, own in enumerate(groups):
            for group in own:
                members.setdefault(group, []).append(number)
        for first, second in {pair for group in members.values() if len(group) > 1 for pair in permutations(group, 2)}:
            if kind == 0 or self._codes[first] != self._codes[second]:
                self._add(first, second, kind)

    def _relate_phrases(self, rows: np.ndarray) -> None:
        """Paraphrases: 3 where the reference has the left phrase of the table's line, 4 where the caption has it."""
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
        lines = np.arange(len(owners)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
        other = back[np.asarray(resources.paraphrases[lines])]
        kept = other >= 0
        for number, target, line in zip(owners[kept].tolist(), other[kept].tolist(), lines[kept].tolist(), strict=True):
            self._add(number, target, 3, line)
            self._add(target, number, 4, line)


def _order(kind: int, line: int, length: int, other: int, size: int) -> tuple[int, int, int]:
    """What decides between matches of one kind at one place of the reference."""
    if kind == 3:
        return length, line, other
    return (other, size, line) if kind == 4 else (other, 0, 0)


_SHORTENED = re.compile(r"iz(er|ation)|ational(ism|ity|ly)").search
_CONSONANT_Y = re.compile(r"^y|(?<=[aeiouy])y")
_R2 = re.compile(r"(gener|commun|arsen|.*?[aeiouy][^aeiouy]).*?[aeiouy][^aeiouy]").match


def stem(word: str) -> str:
    """The word's stem by Snowball's English stemmer.

    nltk leaves a final e ("realization" -> "realize") where an ending that it shortened began before the region R2; that
    e lies in R2 and goes as any other ("realiz").
    """
    found = _snowball()(word)
    if found.endswith(("ize", "ate")) and _SHORTENED(word):
        region = _R2(_CONSONANT_Y.sub("Y", word))
        return found[:-1] if region and region.end() < len(found) else found
    return found


@cache
def _snowball() -> Callable[[str], str]:
    from nltk.stem.snowball import SnowballStemmer

    return SnowballStemmer("english").stem


def java_hash(text: str) -> int:
    """What the reference compares words and stems by, ``String.hashCode`` of Java: "an" equals "c0"."""
    code = 0
    for unit in text if text.isascii() else memoryview(text.encode("utf-16-le")).cast("H"):
        code = 31 * code + (ord(unit) if isinstance(unit, str) else unit)
    return code & 0xFFFFFFFF


def _phrases(sentences: Sequence[Sequence[str]]) -> set[str]:
    found: set[str] = set()
    for words in sentences:
        for start in range(len(words) - 1):
            text = words[start]
            for end in range(start + 1, min(len(words), start + LONGEST)):
                text += f" {words[end]}"
                found.add(text)
    return found


# METEOR of captions, from the statistics of their alignments.

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
COLUMNS = 23
"""Statistics of a caption, in the order of the reference implementation: words and function words of caption and
reference; content words and function words matched, of caption and reference, of each of four modules; chunks; words
matched of caption and reference."""
_CAPTION_CONTENT, _REFERENCE_CONTENT = [4, 8, 12, 16], [5, 9, 13, 17]
_CAPTION_FUNCTION, _REFERENCE_FUNCTION = [6, 10, 14, 18], [7, 11, 15, 19]


STATISTICS = (
    "meteor_matched",
    "meteor_weight",
    "meteor_reference_matched",
    "meteor_reference_weight",
    "meteor_chunks",
    "meteor_matched_words",
    "meteor_reference_matched_words",
    "meteor_words",
    "meteor_reference_words",
)
"""What METEOR is computed from, of a caption or summed over a set: weighted matches and weighted words of captions, the
same of references, chunks, words matched on both sides, words on both sides."""


def meteor_counts(
    candidates: Sequence[str], references: Sequence[Sequence[str]], resources: Resources | None = None
) -> np.ndarray:
    """``[N, 23]``: what METEOR counts of each caption with the reference that gives it the highest score.

    Args:
        candidates: N captions, tokenised (``ptb_tokenize``).
        references: N lists of at least one tokenised reference.
        resources: METEOR's data; by default those of the installed pycocoevalcap.

    Raises:
        ValueError: a caption has no reference.
        UsageError: pycocoevalcap is not installed.
    """
    if not all(references):
        raise ValueError("METEOR compares captions with references, but a caption has none")
    resources = load_resources() if resources is None else resources
    texts = {text: normalise(text) for text in (*candidates, *(one for group in references for one in group))}
    vocabulary = Vocabulary(list(texts.values()), resources)
    sentences = {text: vocabulary.sentence(words) for text, words in texts.items()}
    every: list[list[float]] = []
    for candidate, group in zip(candidates, references, strict=True):
        every += [_count(vocabulary, sentences[candidate], sentences[reference]) for reference in group]
    counts = np.array(every).reshape(-1, COLUMNS)
    values = meteor_of(statistics_of(counts))
    best, first = [], 0
    for group in references:
        best.append(first + int(np.argmax(values[first : first + len(group)])))
        first += len(group)
    return counts[best]


def _count(vocabulary: Vocabulary, caption: Sentence, reference: Sentence) -> list[float]:
    alignment = align(vocabulary.matches(caption, reference), len(reference.words))
    counts = [0.0] * COLUMNS
    counts[:4] = len(caption.words), len(reference.words), sum(caption.function), sum(reference.function)
    for match in alignment:
        _add(counts, match, caption.function, reference.function)
    counts[20] = count_chunks(alignment)
    return counts


def _add(counts: list[float], match: Match, caption: list[bool], reference: list[bool]) -> None:
    start, length, other, other_length, module = match
    first = 4 + 4 * module
    function = sum(caption[other : other + other_length])
    counts[first] += other_length - function
    counts[first + 2] += function
    function = sum(reference[start : start + length])
    counts[first + 1] += length - function
    counts[first + 3] += function
    counts[21] += other_length
    counts[22] += length


def statistics_of(counts: np.ndarray) -> np.ndarray:
    """``[..., 23]`` counts of captions -> the ``[..., 9]`` of ``STATISTICS``.

    As in the reference implementation a caption that matches all of its reference in one chunk has none: neither it nor
    the corpus it is part of is penalised for it.
    """
    each = np.moveaxis(counts, -1, 0)

    # in the reference's order, so that of references with equal scores the same one is the best
    def matched(content: list[int], function: list[int]) -> np.ndarray:
        total = np.zeros_like(each[0])
        for columns, share in ((content, DELTA), (function, 1 - DELTA)):
            for column, own in zip(columns, WEIGHTS, strict=True):
                total = total + each[column] * own * share
        return total

    def weight(words: int, functions: int) -> np.ndarray:
        return DELTA * (each[words] - each[functions]) + (1 - DELTA) * each[functions]

    caption = (matched(_CAPTION_CONTENT, _CAPTION_FUNCTION), weight(0, 2))
    reference = (matched(_REFERENCE_CONTENT, _REFERENCE_FUNCTION), weight(1, 3))
    words, reference_words, chunks, own, other = (each[column] for column in (0, 1, 20, 21, 22))
    whole = (chunks == 1) & (own == words) & (other == reference_words)
    return np.stack([*caption, *reference, np.where(whole, 0, chunks), own, other, words, reference_words], axis=-1)


def meteor_statistics(
    candidates: Sequence[str], references: Sequence[Sequence[str]], resources: Resources | None = None
) -> np.ndarray:
    """``[N, 9]``: the ``STATISTICS`` of each caption; arguments and errors are those of ``meteor_counts``."""
    return statistics_of(meteor_counts(candidates, references, resources))


def meteor_of(statistics: np.ndarray) -> np.ndarray:
    """METEOR as a fraction, from statistics of captions or sums of them.

    ``F = PR / (alpha P + (1 - alpha) R)``, ``penalty = gamma (chunks / matched words)^beta``, ``F (1 - penalty)``
    (Denkowski & Lavie 2014, section 3).

    Args:
        statistics: ``[..., 9]``, as ``STATISTICS``.

    Returns:
        ``[...]``.
    """
    each = np.moveaxis(np.asarray(statistics, np.float64), -1, 0)
    chunks, own, other = each[4:7]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = each[0] / each[1], each[2] / each[3]
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        score = mean * (1 - GAMMA * (chunks / ((own + other) / 2)) ** BETA)
    return np.where(np.isnan(score), 0.0, np.maximum(score, 0.0))


def meteor(
    candidates: Sequence[str], references: Sequence[Sequence[str]], resources: Resources | None = None
) -> tuple[float, np.ndarray]:
    """METEOR 1.5 of a corpus, from the sums of its statistics, and of each caption (fractions).

    Args and errors as for ``meteor_counts``.

    Returns:
        ``(corpus, [N])``.
    """
    statistics = meteor_statistics(candidates, references, resources)
    return float(meteor_of(statistics.sum(axis=0))), meteor_of(statistics)
