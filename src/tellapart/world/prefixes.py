"""The first word of a caption that makes it false, or that the language does not allow there.

A caption is read word by word. A *prefix* is right while some caption that begins so is true of the scene, with two
simplifications that can only name a later word: the layout of several objects is judged once their noun is read, and no word is
blamed for words that must follow it. Being right ends once and for all, so the first wrong word is found by bisection.
``tellapart.world.video.prefixes`` reads captions of clips in the same way.

Beyond its word lists this reader shares no code with ``tellapart.world.grammar`` and ``tellapart.world.truth``; the
tests hold the two against each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from tellapart.world import spec
from tellapart.world.grammar import (
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    PLURAL_WORDS,
    SHAPE_WORDS,
    SIZE_WORDS,
    TEXTURE_WORDS,
    plural,
)
from tellapart.world.scenes import Scene, SceneObject

_MODIFIERS = {"size": SIZE_WORDS, "texture": TEXTURE_WORDS, "colour": COLOUR_WORDS}
_JOINS = {"and": "and", spec.SYNONYMS["and"]: "and", "above": "above", "below": "below"}
_SIDES = {"left": "left of", "right": "right of"}
_VOWELS = tuple("aeiou")
_ARTICLES = ("a", "an")


@dataclass(frozen=True)
class Phrase:
    """What has been read of a noun phrase; ``relation`` is to the phrase before it, ``closed`` that its noun is read."""

    relation: str = "and"
    count: int = 1
    size: str | None = None
    texture: str | None = None
    colour: str | None = None
    shape: str | None = None
    row: int | None = None
    column: int | None = None
    closed: bool = False

    def fits(self, thing: SceneObject) -> bool:
        """Whether it may refer to an object."""
        return (
            self.size in (None, thing.size)
            and self.texture in (None, thing.texture)
            and self.colour in (None, thing.colour)
            and self.shape in (None, thing.shape)
            and self.row in (None, thing.row)
            and self.column in (None, thing.column)
        )


@dataclass(frozen=True)
class Prefix:
    """What the words so far say."""

    phrases: tuple[Any, ...] = ()
    background: str | None = None

    def last(self, **read: object) -> Prefix:
        """With more known of the last phrase."""
        *others, phrase = self.phrases
        return replace(self, phrases=(*others, replace(phrase, **read)))


@dataclass(frozen=True)
class Reading:
    """A caption, word by word.

    Args:
        prefixes: what is said after each word, as far as the language allows the words.
        length: number of words.
        complete: whether all words together are a caption.
        possible: whether some caption that begins so is true of a scene.
    """

    prefixes: tuple[Prefix, ...]
    length: int
    complete: bool
    possible: Callable[[Prefix, Any], bool]

    def first_wrong(self, scene: Any) -> int | None:
        """Place of the first wrong word; the number of words where only the end comes too soon; ``None`` for a true caption."""
        allowed = len(self.prefixes)
        if not allowed or self.possible(self.prefixes[-1], scene):
            wrong = allowed
        else:
            wrong = bisect_left(range(allowed), True, key=lambda i: not self.possible(self.prefixes[i], scene))
        return None if self.complete and wrong == self.length else wrong


@lru_cache(maxsize=100_000)
def read(caption: str) -> Reading:
    """The reading of ``caption``: words one space apart."""
    return _Reader(caption.split(" ")).reading(_possible)


def first_wrong(caption: str, scene: Scene) -> int | None:
    """See ``first_wrong``."""
    return read(caption).first_wrong(scene)


class PhraseReader:
    """Goes through the words of a caption and stops at the first that the language does not allow.

    It reads what still and moving worlds share: phrases with places, and the background. The language is that of a subclass.

    Args:
        words: of the caption.
    """

    starts: ClassVar[Sequence[str]]
    """What may stand before the first phrase."""

    numbers: ClassVar[Mapping[str, int]] = {}
    """Number words that may open a phrase."""

    phrase: ClassVar[type[Phrase]] = Phrase
    """What is kept of a phrase; the first argument is its relation to the one before, the second its count."""

    steps: ClassVar[Mapping[str, Callable[[Any, str], str | None]]]
    """What was read last -> what reads the next word: the new state, or none where the word is not allowed."""

    ends: ClassVar[Collection[str]]
    """States in which a caption may end."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words, self._state, self._said = words, "start", Prefix()

    def reading(self, possible: Callable[[Prefix, Any], bool]) -> Reading:
        """All words read, with what decides whether a prefix is right."""
        prefixes = tuple(self._read())
        complete = len(prefixes) == len(self._words) and self.may_end
        return Reading(prefixes, len(self._words), complete, possible)

    @property
    def may_end(self) -> bool:
        """Whether the words read so far are a caption."""
        return self._state in self.ends

    def _read(self) -> Iterator[Prefix]:
        """What is said after each allowed word."""
        starts = [start.split() for start in self.starts]
        place = 0
        opening = max((_shared(start, self._words) for start in starts), default=0)
        if opening > 1 or (opening and self._words[0] not in _ARTICLES):
            yield from (self._said for _ in range(opening))
            if self._words[:opening] not in starts:
                return
            place = opening
        for word in self._words[place:]:
            state = self.steps[self._state](self, word)
            if state is None:
                return
            self._state = state
            yield self._said

    def _begin(self, word: str, relation: str = "and") -> str | None:
        if word in self.numbers:
            self._said = self._with(self.phrase(relation, self.numbers[word]))
            return "number"
        if word in _ARTICLES:
            self._said = self._with(self.phrase(relation))
            return word
        return None

    def _with(self, phrase: Phrase) -> Prefix:
        return replace(self._said, phrases=(*self._said.phrases, phrase))

    def _joined(self, relation: str) -> None:
        """Whatever follows must be an object in that relation."""
        self._relation, self._before = relation, self._said
        self._said = self._with(self.phrase(relation))

    def _related(self, word: str) -> str | None:
        self._said = self._before
        return self._begin(word, self._relation)

    def _article(self, word: str) -> str | None:
        if word.startswith(_VOWELS) != (self._state == "an"):
            return None
        return self._word_of_phrase(word)

    def _word_of_phrase(self, word: str) -> str | None:
        order = list(_MODIFIERS)
        passed = order.index(self._state) + 1 if self._state in order else 0
        for name in order[passed:]:
            if word in _MODIFIERS[name]:
                self._said = self._said.last(**{name: _MODIFIERS[name][word]})
                return name
        several = self._said.phrases[-1].count > 1
        nouns, anything = (PLURAL_WORDS, plural(spec.ANY_SHAPE)) if several else (SHAPE_WORDS, spec.ANY_SHAPE)
        if word != anything and word not in nouns:
            return None
        self._said = self._said.last(shape=nouns.get(word), closed=True)
        return "noun"

    def _row(self, word: str) -> str | None:
        if word not in spec.ROWS:
            return None
        self._said = self._said.last(row=spec.ROWS.index(word))
        return "column"

    def _column(self, word: str) -> str | None:
        if word not in spec.COLUMNS:
            return None
        self._said = self._said.last(column=spec.COLUMNS.index(word))
        return "placed"

    def _background(self, word: str) -> str | None:
        if word not in BACKGROUND_WORDS or word.startswith(_VOWELS) != (self._state == "on an"):
            return None
        self._said = replace(self._said, background=BACKGROUND_WORDS[word])
        return "coloured"


PHRASE_STEPS: dict[str, Callable[[Any, str], str | None]] = {
    "start": PhraseReader._begin,
    "a": PhraseReader._article,
    "an": PhraseReader._article,
    **dict.fromkeys(("number", *_MODIFIERS), PhraseReader._word_of_phrase),
    "in": lambda reader, word: "the" if word == "the" else None,
    "the": PhraseReader._row,
    "column": PhraseReader._column,
    "related": PhraseReader._related,
    "on": lambda reader, word: f"on {word}" if word in _ARTICLES else None,
    "on a": PhraseReader._background,
    "on an": PhraseReader._background,
    "coloured": lambda reader, word: "done" if word == "background" else None,
    "done": lambda reader, word: None,
}
"""The steps that all worlds share; ``noun`` and ``placed`` are missing."""


class _Reader(PhraseReader):
    """Of pictures: phrases joined by relations."""

    starts, numbers, ends = spec.PREFIXES, spec.NUMBERS, ("noun", "placed", "done")

    def _after_noun(self, word: str) -> str | None:
        return "in" if word == "in" else self._after_phrase(word)

    def _after_phrase(self, word: str) -> str | None:
        if word == "on":
            return "on"
        relation = _JOINS.get(word) or _SIDES.get(word)
        if relation is None:
            return None
        self._joined(relation)
        return "of" if word in _SIDES else "related"

    steps: ClassVar = {
        **PHRASE_STEPS,
        "noun": _after_noun,
        "placed": _after_phrase,
        "of": lambda reader, word: "related" if word == "of" else None,
    }


def _shared(start: Sequence[str], words: Sequence[str]) -> int:
    """How many words two lists begin with alike."""
    alike = [one == other for one, other in zip(start, words, strict=False)]
    return (*alike, False).index(False)


def _possible(prefix: Prefix, scene: Scene) -> bool:
    """Whether some caption that begins so is true."""
    if prefix.background not in (None, scene.background):
        return False
    return _assign(prefix.phrases, scene.objects, None, frozenset())


def _assign(
    phrases: Sequence[Phrase],
    things: Sequence[SceneObject],
    before: tuple[SceneObject, ...] | None,
    used: frozenset[int],
) -> bool:
    """Whether every phrase finds objects of its own in the relation that it states to those of the phrase before."""
    if not phrases:
        return True
    phrase, rest = phrases[0], phrases[1:]
    fitting = [i for i, thing in enumerate(things) if phrase.fits(thing)]
    if phrase.count > 1 and not phrase.closed:
        return len(fitting) >= phrase.count
    if phrase.count > 1:
        groups = [fitting] if len(fitting) == phrase.count else []
    else:
        groups = [[i] for i in fitting]
    for group in groups:
        chosen = tuple(things[i] for i in group)
        apart = used.isdisjoint(group) and _stands(before, chosen, phrase.relation)
        if apart and _assign(rest, things, chosen, used | set(group)):
            return True
    return False


def _stands(before: tuple[SceneObject, ...] | None, chosen: tuple[SceneObject, ...], relation: str) -> bool:
    if before is None or relation == "and":
        return True
    return all(_ORDERS[relation](a, b) for a in before for b in chosen)


_ORDERS = {
    "above": lambda a, b: a.row < b.row,
    "below": lambda a, b: a.row > b.row,
    "left of": lambda a, b: a.column < b.column,
    "right of": lambda a, b: a.column > b.column,
}
