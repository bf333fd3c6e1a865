"""The first word of a caption that makes it false of a clip, or that the language does not allow there.

Captions of clips are read as those of pictures are (``tellapart.world.prefixes``), with verbs and their order in place of
relations. A comma is a word of its own here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from tellapart.world.grammar import COLOUR_WORDS
from tellapart.world.prefixes import PHRASE_STEPS, Phrase, PhraseReader, Prefix, Reading
from tellapart.world.video import spec
from tellapart.world.video.grammar import AND, THEN, VERB_WORDS
from tellapart.world.video.scenes import MovingScene


@dataclass(frozen=True)
class _Clause(Phrase):
    """What has been read of a clause; ``relation`` is its order after the clause before it."""

    verb: str | None = None
    to: str | None = None

    @property
    def is_event(self) -> bool:
        return self.verb not in (None, spec.STAYS)


def words_of(caption: str) -> str:
    """``caption`` with a space before each comma, so that all its words are one space apart."""
    return caption.replace(",", " ,")


@lru_cache(maxsize=100_000)
def read(caption: str) -> Reading:
    """The reading of ``caption``: words and commas one space apart."""
    return _Reader(caption.split(" ")).reading(_possible)


def first_wrong(caption: str, moving: MovingScene) -> int | None:
    """See ``Reading.first_wrong``."""
    return read(caption).first_wrong(moving)


class _Reader(PhraseReader):
    """Of clips: clauses joined by "and" and "then"."""

    starts, phrase, ends = spec.PREFIXES, _Clause, ("noun", "placed", "moves", "told", "done")

    @property
    def may_end(self) -> bool:
        """An object that comes after "then" must do something."""
        return super().may_end and not self._owes_event

    @property
    def _owes_event(self) -> bool:
        last = self._said.phrases[-1]
        return last.relation == THEN and not last.is_event

    def _after_noun(self, word: str) -> str | None:
        return "in" if word == "in" else self._verb(word)

    def _verb(self, word: str) -> str | None:
        if word not in VERB_WORDS:
            return self._after_clause(word)
        verb = VERB_WORDS[word]
        self._said = self._said.last(verb=verb)
        if self._owes_event:
            return None
        return verb if verb in ("moves", "turns") else "told"

    def _direction(self, word: str) -> str | None:
        if word not in spec.DIRECTIONS:
            return self._after_clause(word)
        self._said = self._said.last(to=word)
        return "told"

    def _colour(self, word: str) -> str | None:
        if word not in COLOUR_WORDS:
            return None
        self._said = self._said.last(to=COLOUR_WORDS[word])
        return "told"

    def _after_clause(self, word: str) -> str | None:
        if self._owes_event:
            return None
        if word == "on":
            return "on"
        if word == AND:
            self._joined(AND)
            return "related"
        return self._then(word)

    def _then(self, word: str) -> str | None:
        """The comma counts as its "then"."""
        if word not in (",", THEN) or not self._said.phrases[-1].is_event:
            return None
        self._joined(THEN)
        return "comma" if word == "," else "related"

    steps: ClassVar = {
        **PHRASE_STEPS,
        "noun": _after_noun,
        "placed": _verb,
        "moves": _direction,
        "turns": _colour,
        "told": _after_clause,
        "comma": lambda reader, word: "related" if word == THEN else None,
    }


def _possible(prefix: Prefix, moving: MovingScene) -> bool:
    """Whether some caption that begins so is true."""
    if prefix.background not in (None, moving.scene.background):
        return False
    return _assign(prefix.phrases, moving, None, frozenset())


def _assign(clauses: Sequence[_Clause], moving: MovingScene, before: int | None, used: frozenset[int]) -> bool:
    """Whether every clause finds an object of its own that does what it says, in the order that it states."""
    if not clauses:
        return True
    clause = clauses[0]
    return any(
        _fits(clause, moving, thing, before) and _assign(clauses[1:], moving, thing, used | {thing})
        for thing in range(len(moving.scene.objects))
        if thing not in used
    )


def _fits(clause: _Clause, moving: MovingScene, thing: int, before: int | None) -> bool:
    event = moving.event_of(thing)
    verb, to = (spec.STAYS, "") if event is None else (event.verb, event.to)
    if not clause.fits(moving.scene.objects[thing]) or clause.verb not in (None, verb) or clause.to not in (None, to):
        return False
    if clause.relation != THEN:
        return True
    earlier = None if before is None else moving.event_of(before)
    return event is not None and earlier is not None and moving.events.index(earlier) < moving.events.index(event)
