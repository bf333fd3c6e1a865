"""The language of the moving world: what a caption says, how it is written, and how it is read back.

::

    caption    = [prefix] clause {("," "then" | "and") clause} [background]
    prefix     = "in this clip" | "here"
    clause     = phrase [verb]                phrase: one object, as in the language of the still world
    verb       = "moves" ["left" | "right" | "up" | "down"]
               | "turns" colour | "appears" | "vanishes" | "stays"
    background = "on" ("a" | "an") background-colour "background"

"then" is between two clauses that mention events: the first happens before the second. "and" says nothing of time. The
comma before "then" may be left out. A phrase describes an object as it is first seen: where a red star moves, its place is
where it starts; where it turns blue, its colour is red. The next word always decides which rule applies, so a caption has at
most one reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tellapart.world import spec as still
from tellapart.world.grammar import (
    COLOUR_WORDS,
    NounPhrase,
    UngrammaticalError,
    Words,
    read_background,
    read_phrase,
    write_background,
    write_phrase,
)
from tellapart.world.video import spec

THEN, AND = "then", "and"


@dataclass(frozen=True)
class Clause:
    """One object and what it does; what is ``None`` is not said.

    Args:
        phrase: the object, as it is first seen; its count is 1.
        verb: ``moves``, ``turns``, ``appears``, ``vanishes`` or ``stays``.
        to: the direction of ``moves``, the colour of ``turns``.
    """

    phrase: NounPhrase
    verb: str | None = None
    to: str | None = None

    @property
    def is_event(self) -> bool:
        """Whether it mentions an event."""
        return self.verb not in (None, spec.STAYS)


@dataclass(frozen=True)
class MovingDescription:
    """What a caption of a clip says, whatever its wording.

    Args:
        clauses: at least one.
        orders: the word between clause i and clause i + 1: ``then`` or ``and``; one fewer than the clauses.
        background: its colour, or ``None`` where it is not said.
    """

    clauses: tuple[Clause, ...]
    orders: tuple[str, ...] = ()
    background: str | None = None


def write(description: MovingDescription, *, prefix: str = "", choose: Callable[[str], str] = str) -> str:
    """The caption that says ``description``.

    Args:
        description: what to say.
        prefix: one of the prefixes, or nothing.
        choose: turns a word of the specification into the word to write: itself or its synonym.
    """
    words = [prefix] if prefix else []
    for i, clause in enumerate(description.clauses):
        if i and description.orders[i - 1] == THEN:
            words[-1] += ","
        if i:
            words.append(description.orders[i - 1])
        words += write_phrase(clause.phrase, choose)
        if clause.verb is not None:
            words.append(choose(clause.verb))
        if clause.to is not None:
            words.append(choose(clause.to))
    return " ".join(words + write_background(description.background, choose))


VERB_WORDS = {word: verb for verb in (*spec.VERBS, spec.STAYS) for word in (verb, spec.SYNONYMS.get(verb, verb))}
"""Word -> the verb that it is."""


def parse(caption: str) -> MovingDescription | None:
    """What ``caption`` says, or ``None`` if it is not of the language.

    Words must be lower-case and one space apart. White space around the caption, commas before "then" and one final dot are
    ignored.
    """
    text = re.sub(r" ?, then\b", " then", caption.strip())
    words = text.removesuffix(".").rstrip().split(" ")
    try:
        return _read_caption(Words(words))
    except UngrammaticalError:
        return None


def _read_caption(words: Words) -> MovingDescription:
    any(words.skip(prefix) for prefix in spec.PREFIXES)
    clauses, orders = [_read_clause(words)], []
    while (order := next((text for text in (THEN, AND) if words.skip(text)), None)) is not None:
        orders.append(order)
        clauses.append(_read_clause(words))
        if order == THEN and not (clauses[-2].is_event and clauses[-1].is_event):
            raise UngrammaticalError(order)
    return MovingDescription(tuple(clauses), tuple(orders), read_background(words))


def _read_clause(words: Words) -> Clause:
    if words.peek() in still.NUMBERS:
        raise UngrammaticalError(words.peek())
    phrase = read_phrase(words)
    verb = words.take_optional(VERB_WORDS)
    if verb == "moves" and words.peek() in spec.DIRECTIONS:
        return Clause(phrase, verb, words.take(spec.DIRECTIONS))
    if verb == "turns":
        return Clause(phrase, verb, COLOUR_WORDS[words.take(COLOUR_WORDS)])
    return Clause(phrase, verb)
