"""The language of the world: the meaning of a caption, how it is written, and how it is parsed.

::

    caption    = [prefix] phrase {relation phrase} [background]
    prefix     = "a picture of" | "an image of" | "a drawing of" | "a photo of" | "we see"
    phrase     = ("a" | "an") [size] [texture] [colour] noun [place]
               | ("two" | "three") [size] [texture] [colour] nouns [place]
    noun       = a shape's name, or "shape" for any
    place      = "in the" ("top" | "bottom") ("left" | "right")
    relation   = "and" | "with" | "above" | "below" | "left of" | "right of"
    background = "on" ("a" | "an") background-colour "background"

"an" comes before a vowel and "a" before any other letter. The next word always decides which rule applies (the grammar is
LL(1) except for the prefixes, which share only their article with a phrase), so a caption has at most one reading. A relation
holds between the two phrases around it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tellapart.world import spec


@dataclass(frozen=True)
class NounPhrase:
    """Objects that a caption mentions; ``None`` is not mentioned.

    Args:
        count: how many; 1 is written "a" and means at least one, a larger number means exactly that number.
        shape: their shape.
        colour: their colour.
        size: their size.
        texture: their texture.
        place: their cell, row and column.
    """

    count: int = 1
    shape: str | None = None
    colour: str | None = None
    size: str | None = None
    texture: str | None = None
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class Description:
    """The meaning of a caption, independent of its wording.

    Args:
        phrases: at least one.
        relations: what holds between phrase i and phrase i + 1: "and" (nothing but that both are there), "above", "below",
            "left of" or "right of"; one fewer than the phrases.
        background: its colour, or ``None`` where it is not said.
    """

    phrases: tuple[NounPhrase, ...]
    relations: tuple[str, ...] = ()
    background: str | None = None


def plural(noun: str) -> str:
    """The noun for more than one."""
    return spec.IRREGULAR_PLURALS.get(noun, noun + "s")


def article(word: str) -> str:
    """The indefinite article before ``word``."""
    return "an" if word[0] in "aeiou" else "a"


def write(description: Description, *, prefix: str = "", choose: Callable[[str], str] = str) -> str:
    """The caption that says ``description``.

    Args:
        description: what to say.
        prefix: one of the prefixes, or nothing.
        choose: turns a word of the specification into the word to write: itself or its synonym.
    """
    words = [prefix] if prefix else []
    for i, phrase in enumerate(description.phrases):
        if i:
            words.append(choose(description.relations[i - 1]))
        words += write_phrase(phrase, choose)
    return " ".join(words + write_background(description.background, choose))


def write_background(background: str | None, choose: Callable[[str], str]) -> list[str]:
    """The words that end a caption with its background; none where it is not said."""
    if background is None:
        return []
    colour = choose(background)
    return ["on", article(colour), colour, "background"]


def write_phrase(phrase: NounPhrase, choose: Callable[[str], str]) -> list[str]:
    """The words of a phrase, each as ``choose`` turns it."""
    noun = choose(phrase.shape or spec.ANY_SHAPE)
    words = [choose(word) for word in (phrase.size, phrase.texture, phrase.colour) if word is not None]
    words.append(plural(noun) if phrase.count > 1 else noun)
    numbers = {number: word for word, number in spec.NUMBERS.items()}
    words.insert(0, numbers[phrase.count] if phrase.count > 1 else article(words[0]))
    if phrase.place is not None:
        words += ["in", "the", spec.ROWS[phrase.place[0]], spec.COLUMNS[phrase.place[1]]]
    return words


class UngrammaticalError(Exception):
    """The words are not a caption."""


class Words:
    """The words of a caption that are still to be read."""

    def __init__(self, words: list[str]) -> None:
        self._words, self._next = words, 0

    def peek(self) -> str:
        """The next word, or the empty string at the end."""
        return self._words[self._next] if self._next < len(self._words) else ""

    def end(self) -> None:
        """Nothing may be left, not even the empty word between two spaces."""
        if self._next < len(self._words):
            raise UngrammaticalError(self.peek())

    def skip(self, text: str) -> bool:
        """Read the words of ``text`` if they come next."""
        words = text.split()
        found = self._words[self._next : self._next + len(words)] == words
        self._next += len(words) * found
        return found

    def take(self, allowed: Collection[str]) -> str:
        """Read the next word, which must be one of ``allowed``."""
        word = self.peek()
        if word not in allowed:
            raise UngrammaticalError(word)
        self._next += 1
        return word

    def take_optional(self, meanings: dict[str, str]) -> str | None:
        """Read the next word if it is a key, and return what it means."""
        return meanings[self.take(meanings)] if self.peek() in meanings else None


def meanings_of(names: Collection[str]) -> dict[str, str]:
    """Every word for one of ``names`` -> that name."""
    return {name: name for name in names} | {spec.SYNONYMS[name]: name for name in names if name in spec.SYNONYMS}


SHAPE_WORDS = meanings_of(spec.SHAPES)
PLURAL_WORDS = {plural(word): shape for word, shape in SHAPE_WORDS.items()}
COLOUR_WORDS = meanings_of(spec.COLOURS)
SIZE_WORDS = meanings_of(spec.SIZES)
TEXTURE_WORDS = meanings_of(spec.TEXTURES)
BACKGROUND_WORDS = meanings_of(spec.BACKGROUNDS)
_RELATION_WORDS = meanings_of(spec.RELATIONS)
_NOUNS: dict[str, str | None] = {spec.ANY_SHAPE: None, **SHAPE_WORDS}
_PLURAL_NOUNS: dict[str, str | None] = {plural(spec.ANY_SHAPE): None, **PLURAL_WORDS}


def parse(caption: str) -> Description | None:
    """The meaning of ``caption``, or ``None`` if it is not of the language.

    Words must be lower-case and one space apart. White space around the caption and one final dot are ignored.
    """
    text = caption.strip()
    words = text.removesuffix(".").rstrip().split(" ")
    try:
        return _read_caption(Words(words))
    except UngrammaticalError:
        return None


def _read_caption(words: Words) -> Description:
    any(words.skip(prefix) for prefix in spec.PREFIXES)
    phrases, relations = [read_phrase(words)], []
    while (relation := next((text for text in _RELATION_WORDS if words.skip(text)), None)) is not None:
        relations.append(_RELATION_WORDS[relation])
        phrases.append(read_phrase(words))
    return Description(tuple(phrases), tuple(relations), read_background(words))


def read_background(words: Words) -> str | None:
    """Read the end of a caption: its background, if it is said.

    Raises:
        UngrammaticalError: something else comes next.
    """
    background = None
    if words.skip("on"):
        read_article(words)
        background = BACKGROUND_WORDS[words.take(BACKGROUND_WORDS)]
        words.take(("background",))
    words.end()
    return background


def read_phrase(words: Words) -> NounPhrase:
    """Read a phrase.

    Raises:
        UngrammaticalError: none comes next.
    """
    count = 1
    if words.peek() in spec.NUMBERS:
        count = spec.NUMBERS[words.take(spec.NUMBERS)]
    else:
        read_article(words)
    size = words.take_optional(SIZE_WORDS)
    texture = words.take_optional(TEXTURE_WORDS)
    colour = words.take_optional(COLOUR_WORDS)
    nouns = _NOUNS if count == 1 else _PLURAL_NOUNS
    shape = nouns[words.take(nouns)]
    place = None
    if words.skip("in the"):
        place = spec.ROWS.index(words.take(spec.ROWS)), spec.COLUMNS.index(words.take(spec.COLUMNS))
    return NounPhrase(count, shape, colour, size, texture, place)


def read_article(words: Words) -> None:
    """Read the indefinite article that the word after it asks for.

    Raises:
        UngrammaticalError: it does not come next.
    """
    found = words.take(("a", "an"))
    if not words.peek() or found != article(words.peek()):
        raise UngrammaticalError(found)
