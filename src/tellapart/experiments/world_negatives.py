"""False siblings of the world's captions: the same words in no order, or with one thing in the wrong place.

They teach the judge, and measure whether a listener reads more than a bag of words (binding, relation, word order).
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np

from tellapart.data.world.grammar import (
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
"""For each attribute: word -> what it means."""

OPPOSITES = {"above": "below", "below": "above", "left": "right", "right": "left", "top": "bottom", "bottom": "top"}

SHUFFLE_RATE, ATTRIBUTES_RATE = 0.1, 0.6
"""How often each kind of false text is tried first; the rest are wrong relations. A shuffled text is found out so soon that a
few are enough, and captions in which nothing can be swapped add their share."""


def hard_negative(text: str, rng: np.random.Generator) -> str:
    """A false sibling of a grammatical caption: attributes or a relation swapped if it has any, else its words shuffled."""
    point = rng.random()
    if point < SHUFFLE_RATE:
        return shuffle_words(text, rng)
    order = [swap_attributes, swap_relation]
    if point >= SHUFFLE_RATE + ATTRIBUTES_RATE:
        order.reverse()
    return order[0](text, rng) or order[1](text, rng) or shuffle_words(text, rng)


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


def swap_relation(text: str, rng: np.random.Generator) -> str | None:
    """One word of place turned into its opposite; none if there is none."""
    words = text.split()
    places = [i for i, word in enumerate(words) if word in OPPOSITES]
    if not places:
        return None
    at = places[int(rng.integers(len(places)))]
    return " ".join([*words[:at], OPPOSITES[words[at]], *words[at + 1 :]])


def _agree(words: list[str]) -> list[str]:
    """ "a" and "an" as the word after them wants."""
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
