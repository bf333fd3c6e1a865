"""False siblings of the world's captions: one thing wrong, or in the wrong place, or no order at all.

They teach ``world/negclip``, and measure whether a listener reads more than a bag of words (binding, relation,
word order).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from tellapart.world.grammar import (
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    PLURAL_WORDS,
    SHAPE_WORDS,
    SIZE_WORDS,
    TEXTURE_WORDS,
    article,
    parse,
)

KINDS = (SHAPE_WORDS, PLURAL_WORDS, COLOUR_WORDS, SIZE_WORDS, TEXTURE_WORDS)
"""For each attribute of objects: word -> what it means."""

OPPOSITES = {"above": "below", "below": "above", "left": "right", "right": "left", "top": "bottom", "bottom": "top"}

RATES = {"replaced": 0.48, "swapped": 0.34, "relation": 0.12, "shuffled": 0.06}
"""How often each kind of false text is tried first. A shuffled text is recognised so soon that a few are enough. With fewer
replaced words a listener learns which colour goes with which shape at the expense of size and background: of 0.25 and 0.45
swapped, size is right in 86 % and background in 76 %."""


def hard_negative(text: str, rng: np.random.Generator) -> str:
    """A false sibling of a grammatical caption; where the kind that was drawn cannot be made, another is."""
    first = list(_MAKERS)[int(np.searchsorted(np.cumsum(list(RATES.values())), rng.random(), side="right"))]
    makers = [_MAKERS[first], swap_attributes, swap_relation, shuffle_words]
    return next(sibling for make in makers if (sibling := make(text, rng)) is not None)


def shuffle_words(text: str, rng: np.random.Generator) -> str:
    """The words in random order."""
    return " ".join(rng.permutation(text.split()).tolist())


def swap_attributes(text: str, rng: np.random.Generator) -> str | None:
    """Two words for different values of one attribute exchanged, articles put right; none if that says nothing new.

    "a red star and a blue ring" becomes "a blue star and a red ring", while "a small star and a large star" has no such
    sibling that is false.
    """
    words = text.split()
    on_background = {
        i for i, word in enumerate(words) if word in BACKGROUND_WORDS and "background" in words[i + 1 : i + 2]
    }
    siblings = []
    for meanings in KINDS:
        places = [i for i, word in enumerate(words) if word in meanings and i not in on_background]
        for i, j in combinations(places, 2):
            if meanings[words[i]] != meanings[words[j]]:
                swapped = list(words)
                swapped[i], swapped[j] = words[j], words[i]
                siblings.append(" ".join(_agree(swapped)))
    false = [sibling for sibling in siblings if _says_other(sibling, text)]
    return false[int(rng.integers(len(false)))] if false else None


def replace_attribute(text: str, rng: np.random.Generator) -> str | None:
    """One attribute word turned into another value of that attribute, articles put right; None if there is no attribute word."""
    words = text.split()
    meant = [(i, meanings) for i in range(len(words)) if (meanings := _meanings_at(words, i))]
    if not meant:
        return None
    at, meanings = meant[int(rng.integers(len(meant)))]
    others = [word for word in meanings if meanings[word] != meanings[words[at]]]
    words[at] = others[int(rng.integers(len(others)))]
    return " ".join(_agree(words))


def swap_relation(text: str, rng: np.random.Generator) -> str | None:
    """One word of place turned into its opposite; None if there is no word of place."""
    words = text.split()
    places = [i for i, word in enumerate(words) if word in OPPOSITES]
    if not places:
        return None
    at = places[int(rng.integers(len(places)))]
    return " ".join([*words[:at], OPPOSITES[words[at]], *words[at + 1 :]])


def _meanings_at(words: Sequence[str], place: int) -> Mapping[str, str] | None:
    """The words (and what they mean) that could replace the attribute named at ``place``; none if none is named there."""
    if words[place + 1 : place + 2] == ["background"]:
        return BACKGROUND_WORDS if words[place] in BACKGROUND_WORDS else None
    return next((meanings for meanings in KINDS if words[place] in meanings), None)


def _agree(words: list[str]) -> list[str]:
    """The words, with every article as the word after it wants."""
    following = [*words[1:], ""]
    return [
        article(after) if word in ("a", "an") and after else word for word, after in zip(words, following, strict=True)
    ]


def _says_other(one: str, other: str) -> bool:
    """Whether two captions say different things: other phrases, or the same ones in other relations."""
    first, second = parse(one), parse(other)
    if first is None or second is None or Counter(first.phrases) != Counter(second.phrases):
        return True
    listed = set(first.relations) | set(second.relations) <= {"and"}
    return not listed and (first.phrases, first.relations) != (second.phrases, second.relations)


_MAKERS: dict[str, Callable[[str, np.random.Generator], str | None]] = {
    "replaced": replace_attribute,
    "swapped": swap_attributes,
    "relation": swap_relation,
    "shuffled": shuffle_words,
}
"""Kinds of ``RATES`` -> what makes them."""
