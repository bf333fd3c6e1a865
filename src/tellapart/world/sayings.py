"""True and false statements about a scene: the texts that train verifiers and the judge.

Captions that a trained captioner writes to please a verifier are not those of annotators: they say objects twice, chain
phrases, count wrongly and break the grammar. So texts are drawn widely here, and
``first_wrong`` labels them; nothing is assumed false because it was changed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tellapart.world import spec
from tellapart.world.captions import describe, describe_fully, write_as_annotator
from tellapart.world.grammar import Description, NounPhrase
from tellapart.world.scenes import VALUES, Scene, SceneObject, pick, pick_weighted, relations_between
from tellapart.world.vocabulary import MAX_NEW_TOKENS, WORDS

CELLS = tuple((row, column) for row in range(len(spec.ROWS)) for column in range(len(spec.COLUMNS)))
BACKGROUNDS = tuple(spec.BACKGROUNDS)
BY_LIKENESS = {
    name: sorted(
        (other for other in BACKGROUNDS if other != name), key=lambda other: math.dist(rgb, spec.BACKGROUNDS[other])
    )
    for name, rgb in spec.BACKGROUNDS.items()
}
"""Background -> the others, that with the nearest colour first."""


@dataclass(frozen=True)
class Habits:
    """How often texts say what. All are probabilities.

    Args:
        annotator: the text is one of the world's annotators.
        full: it says everything.
        related: phrases of other texts are joined by relations; else by "and", and some cells are named.
        attributes: attribute -> that a phrase says it.
        background: that a text says it.
        counted: that a text counts objects.
    """

    annotator: float = 0.22
    full: float = 0.12
    related: float = 0.5
    colour: float = 0.75
    size: float = 0.35
    texture: float = 0.4
    shape: float = 0.93
    place: float = 0.6
    background: float = 0.35
    counted: float = 0.13


def draw_text(scene: Scene, rng: random.Random, habits: Habits) -> Description:
    """A true text about ``scene``."""
    share = rng.random()
    if share < habits.annotator:
        return describe(scene, rng)
    if share < habits.annotator + habits.full:
        return describe_fully(scene, rng)
    if share < habits.annotator + habits.full + habits.counted:
        return _counted(scene, rng)
    number = pick_weighted(rng, {1: 0.3, 2: 0.4, 3: 0.3})
    things = rng.sample(scene.objects, min(number, len(scene.objects)))
    return _about(things, scene, rng, habits)


def careless_text(scene: Scene, rng: random.Random, habits: Habits) -> Description:
    """A text of one to five phrases, each about any object, so that many say one twice."""
    number = pick_weighted(rng, {1: 0.1, 2: 0.3, 3: 0.35, 4: 0.2, 5: 0.05})
    return _about([pick(rng, scene.objects) for _ in range(number)], scene, rng, habits)


def _about(things: Sequence[SceneObject], scene: Scene, rng: random.Random, habits: Habits) -> Description:
    related = rng.random() < habits.related
    between = tuple(_between(a, b, rng) if related and rng.random() < 0.75 else "and" for a, b in pairwise(things))
    placed = rng.random() < (0.25 if related else habits.place)
    phrases = tuple(_phrase(thing, rng, habits, placed=placed and rng.random() < 0.7) for thing in things)
    return Description(phrases, between, scene.background if rng.random() < habits.background else None)


def _between(one: SceneObject, other: SceneObject, rng: random.Random) -> str:
    return pick(rng, relations_between(one, other) or spec.RELATIONS[1:])


def _phrase(thing: SceneObject, rng: random.Random, habits: Habits, *, placed: bool) -> NounPhrase:
    def said(name: str, rate: float) -> str | None:
        return getattr(thing, name) if rng.random() < rate else None

    texture = habits.texture * (0.3 if thing.texture == "plain" else 1.0)
    return NounPhrase(
        1,
        said("shape", habits.shape),
        said("colour", habits.colour),
        said("size", habits.size),
        said("texture", texture),
        thing.cell if placed else None,
    )


def _counted(scene: Scene, rng: random.Random) -> Description:
    """How many objects there are, or share what one of them is; one object is spoken of as one."""
    thing = pick(rng, scene.objects)
    shared = {name: getattr(thing, name) for name in rng.sample(list(VALUES), pick(rng, (0, 0, 0, 1, 1, 2)))}
    count = sum(all(getattr(other, name) == value for name, value in shared.items()) for other in scene.objects)
    return Description((NounPhrase(count, **shared),))


def change(said: Description, scene: Scene, rng: random.Random) -> Description:
    """``said`` with one thing changed, usually into something false that other objects of the scene make plausible."""
    made = CHANGES[pick_weighted(rng, CHANGE_WEIGHTS)](said, scene, rng)
    return _with_value_replaced(said, scene, rng) if made is None else made


def _put(said: Description, place: int, phrase: NounPhrase) -> Description:
    return replace(said, phrases=(*said.phrases[:place], phrase, *said.phrases[place + 1 :]))


def _another_value(name: str, present: str | None, scene: Scene, rng: random.Random) -> str:
    """Another value of an attribute, of an object of the scene in half of the cases."""
    here = [value for thing in scene.objects if (value := getattr(thing, name)) != present]
    return pick(rng, here) if here and rng.random() < 0.5 else pick(rng, [v for v in VALUES[name] if v != present])


def _with_value_replaced(said: Description, scene: Scene, rng: random.Random) -> Description:
    """Another value of an attribute that is said; of a bare "shape", its shape."""
    places = [
        (i, name) for i, phrase in enumerate(said.phrases) for name in VALUES if getattr(phrase, name) is not None
    ]
    place, name = pick(rng, places or [(0, "shape")])
    return _valued(said, place, name, scene, rng)


def _with_value_added(said: Description, scene: Scene, rng: random.Random) -> Description | None:
    places = [(i, name) for i, phrase in enumerate(said.phrases) for name in VALUES if getattr(phrase, name) is None]
    return _valued(said, *pick(rng, places), scene, rng) if places else None


def _valued(said: Description, place: int, name: str, scene: Scene, rng: random.Random) -> Description:
    phrase = said.phrases[place]
    value: dict[str, Any] = {name: _another_value(name, getattr(phrase, name), scene, rng)}
    return _put(said, place, replace(phrase, **value))


def _with_place_changed(said: Description, scene: Scene, rng: random.Random) -> Description:
    """Some phrase with another cell, in half of the cases that of another object; or with one if it had none."""
    named = [i for i, phrase in enumerate(said.phrases) if phrase.place is not None]
    place = pick(rng, named or range(len(said.phrases)))
    phrase = said.phrases[place]
    taken = [thing.cell for thing in scene.objects if thing.cell != phrase.place]
    cells = [cell for cell in CELLS if cell != phrase.place]
    cell = pick(rng, taken if taken and rng.random() < 0.5 else cells)
    return _put(said, place, replace(phrase, place=cell))


def _with_relation_changed(said: Description, scene: Scene, rng: random.Random) -> Description | None:
    if not said.relations:
        return None
    named = [i for i, relation in enumerate(said.relations) if relation != "and"]
    place = pick(rng, named or range(len(said.relations)))
    other = pick(rng, [name for name in spec.RELATIONS[1:] if name != said.relations[place]])
    return replace(said, relations=(*said.relations[:place], other, *said.relations[place + 1 :]))


def _with_parts_exchanged(said: Description, scene: Scene, rng: random.Random) -> Description | None:
    """Two phrases with each other's value of one attribute, or cell, or altogether."""
    if len(said.phrases) < 2:
        return None
    i, j = rng.sample(range(len(said.phrases)), 2)
    one, other = said.phrases[i], said.phrases[j]
    names = [name for name in (*VALUES, "place") if getattr(one, name) != getattr(other, name)]
    if not names:
        return None
    if rng.random() < 0.25:
        return _put(_put(said, i, other), j, one)
    name = pick(rng, names)
    first: dict[str, Any] = {name: getattr(other, name)}
    second: dict[str, Any] = {name: getattr(one, name)}
    return _put(_put(said, i, replace(one, **first)), j, replace(other, **second))


def _with_phrase_said_again(said: Description, scene: Scene, rng: random.Random) -> Description:
    """A phrase once more, perhaps with less in it, anywhere after."""
    phrase = pick(rng, said.phrases)
    for name in ("size", "texture", "colour", "place"):
        if rng.random() < 0.25:
            silent: dict[str, Any] = {name: None}
            phrase = replace(phrase, **silent)
    return _with_phrase(said, phrase, rng)


def _with_phrase_invented(said: Description, scene: Scene, rng: random.Random) -> Description:
    shape, colour, size, texture = (pick(rng, values) for values in VALUES.values())
    thing = SceneObject(shape, colour, size, texture, *pick(rng, CELLS))
    return _with_phrase(said, _phrase(thing, rng, Habits(), placed=rng.random() < 0.2), rng)


def _with_phrase(said: Description, phrase: NounPhrase, rng: random.Random) -> Description:
    at = rng.randrange(len(said.phrases)) + 1
    relation = "and" if rng.random() < 0.6 else pick(rng, spec.RELATIONS[1:])
    phrases = (*said.phrases[:at], phrase, *said.phrases[at:])
    return replace(said, phrases=phrases, relations=(*said.relations[: at - 1], relation, *said.relations[at - 1 :]))


def _with_count_changed(said: Description, scene: Scene, rng: random.Random) -> Description:
    counted = [i for i, phrase in enumerate(said.phrases) if phrase.count > 1 or phrase.shape is None]
    place = pick(rng, counted or range(len(said.phrases)))
    phrase = said.phrases[place]
    counts = [count for count in (1, *spec.NUMBERS.values()) if count != phrase.count]
    return _put(said, place, replace(phrase, count=pick(rng, counts), place=None))


def _with_background_changed(said: Description, scene: Scene, rng: random.Random) -> Description:
    """Another background, in half of the cases the one whose colour is nearest to the scene's."""
    others = [name for name in BACKGROUNDS if name != said.background]
    alike = [name for name in BY_LIKENESS[scene.background] if name in others]
    return replace(said, background=alike[0] if rng.random() < 0.5 else pick(rng, others))


CHANGES: dict[str, Callable[[Description, Scene, random.Random], Description | None]] = {
    "replaced": _with_value_replaced,
    "added": _with_value_added,
    "place": _with_place_changed,
    "relation": _with_relation_changed,
    "exchanged": _with_parts_exchanged,
    "again": _with_phrase_said_again,
    "invented": _with_phrase_invented,
    "count": _with_count_changed,
    "background": _with_background_changed,
}
"""Kind of change -> what makes it; none where the text has nothing to change so."""

CHANGE_WEIGHTS = {
    "replaced": 0.17,
    "added": 0.12,
    "place": 0.15,
    "relation": 0.15,
    "exchanged": 0.12,
    "again": 0.11,
    "invented": 0.05,
    "count": 0.07,
    "background": 0.12,  # at half of it, "black" passes on brown pictures for hundreds of steps
}
"""Kind of change -> how often it is made, relative to the others."""


def break_words(text: str, rng: random.Random, known: Sequence[str] = WORDS) -> str:
    """``text`` with one or two faults of language, such as a word lost, a stretch repeated or a wrong article.

    Args:
        text: words one space apart.
        rng: decides.
        known: words that may be put in.
    """
    words = text.split()
    for _ in range(1 if rng.random() < 0.75 else 2):
        words = pick(rng, _FAULTS)(words, rng, known) or words
    return " ".join(words)


def _lost(words: list[str], rng: random.Random, known: Sequence[str]) -> list[str]:
    at = rng.randrange(len(words))
    return words[:at] + words[at + 1 :]


def _doubled(words: list[str], rng: random.Random, known: Sequence[str]) -> list[str]:
    at = rng.randrange(len(words))
    return words[: at + 1] + words[at:]


def _replaced(words: list[str], rng: random.Random, known: Sequence[str]) -> list[str]:
    at = rng.randrange(len(words))
    return [*words[:at], pick(rng, known), *words[at + 1 :]]


def _put_in(words: list[str], rng: random.Random, known: Sequence[str]) -> list[str]:
    at = rng.randrange(len(words) + 1)
    return [*words[:at], pick(rng, known), *words[at:]]


def _exchanged(words: list[str], rng: random.Random, known: Sequence[str]) -> list[str]:
    at = rng.randrange(max(1, len(words) - 1))
    return [*words[:at], *reversed(words[at : at + 2]), *words[at + 2 :]]


def _cut(words: list[str], rng: random.Random, known: Sequence[str]) -> list[str]:
    return words[: rng.randrange(1, len(words) + 1)]


def _repeated(words: list[str], rng: random.Random, known: Sequence[str]) -> list[str]:
    start = rng.randrange(len(words))
    end = min(len(words), start + rng.randrange(1, 7))
    return [*words[:end], *words[start:]]


def _with_wrong_article(words: list[str], rng: random.Random, known: Sequence[str]) -> list[str] | None:
    """With "an" for some "a" or the other way round, as in "a orange star"; None without an article."""
    places = [at for at, word in enumerate(words) if word in ARTICLES]
    if not places:
        return None
    at = pick(rng, places)
    return [*words[:at], ARTICLES[words[at]], *words[at + 1 :]]


ARTICLES = {"a": "an", "an": "a"}
_FAULTS = (_lost, _doubled, _replaced, _put_in, _exchanged, _cut, _repeated, _with_wrong_article)


def draw_texts(scene: Scene, rng: random.Random, habits: Habits) -> list[str]:
    """Four texts about ``scene``: a true one, the same with a change, a careless one, and one with broken language.

    Which of them are true is not said: two changes may undo each other, and a broken text may happen to be whole.
    """
    true = draw_text(scene, rng, habits)
    counting = len(true.phrases) == 1 and (true.phrases[0].count > 1 or true.phrases[0].shape is None)
    false = _with_count_changed(true, scene, rng) if counting and rng.random() < 0.6 else change(true, scene, rng)
    if rng.random() < 0.2:
        false = change(false, scene, rng)
    careless = careless_text(scene, rng, habits)
    if rng.random() < 0.4:
        careless = change(careless, scene, rng)
    texts = [write_as_annotator(said, rng) for said in (true, false, careless)]
    return [" ".join(text.split()[:MAX_NEW_TOKENS]) for text in (*texts, break_words(pick(rng, texts), rng))]
