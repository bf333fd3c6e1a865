"""Captions of a scene by people and from the web."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tellapart.world import spec
from tellapart.world.grammar import Description, NounPhrase, write
from tellapart.world.scenes import Scene, SceneObject, pick, pick_weighted, relations_between, shuffled


def full_description(scene: Scene) -> str:
    """Everything about ``scene`` in one caption: all that the language can say about it."""
    return write(_every(scene.objects, scene))


def describe(scene: Scene, rng: random.Random) -> Description:
    """What one annotator says of ``scene``: habits differ in how much they mention, and all of it is true."""
    return _HABITS[pick_weighted(rng, spec.HABITS)](scene, rng)


def write_as_annotator(description: Description, rng: random.Random) -> str:
    """``description`` in one annotator's words: synonyms and prefixes come and go."""
    prefix = pick(rng, spec.PREFIXES) if rng.random() < spec.PREFIX_RATE else ""
    return write(description, prefix=prefix, choose=lambda word: _wording(word, rng))


def references(scene: Scene, rng: random.Random) -> list[str]:
    """The captions of five annotators."""
    return [write_as_annotator(describe(scene, rng), rng) for _ in range(spec.REFERENCES_PER_IMAGE)]


def alt_text(scene: Scene, rng: random.Random) -> str:
    """Keywords of ``scene`` in random order, as a web page's alternative text: dense, without grammar."""
    rates = spec.ALT_TEXT_RATES
    words: list[str] = []
    for thing in scene.objects:
        named = {thing.shape: rates["shape"], thing.colour: rates["colour"], thing.size: rates["size"]}
        named[thing.texture] = rates["plain" if thing.texture == "plain" else "texture"]
        words += [word for word, rate in named.items() if rng.random() < rate]
    if not words or rng.random() < rates["background"]:
        words += [scene.background, "background"]
    return " ".join(_wording(word, rng) for word in shuffled(rng, words))


def _wording(word: str, rng: random.Random) -> str:
    other = spec.SYNONYMS.get(word)
    return other if other is not None and rng.random() < spec.SYNONYM_RATE else word


def _whole(thing: SceneObject) -> NounPhrase:
    return NounPhrase(1, thing.shape, thing.colour, thing.size, thing.texture, thing.cell)


def _generic(scene: Scene, rng: random.Random) -> Description:
    """How many there are, or the shapes of some."""
    if rng.random() < 0.4:
        return Description((NounPhrase(len(scene.objects)),))
    things = _some(scene, 1 if rng.random() < 0.6 else 2, rng)
    return _joined([NounPhrase(shape=thing.shape) for thing in things], scene)


def _colour(scene: Scene, rng: random.Random) -> Description:
    """Colour and shape of all or some."""
    every = len(scene.objects)
    things = _some(scene, pick(rng, range(1, every + 1)) if rng.random() < 0.4 else every, rng)
    shapes = [thing.shape if rng.random() < 0.9 else None for thing in things]
    phrases = [NounPhrase(shape=shape, colour=thing.colour) for thing, shape in zip(things, shapes, strict=True)]
    return _joined(phrases, scene)


def _placed(scene: Scene, rng: random.Random) -> Description:
    """One or two objects by shape, perhaps colour, and where they are: in their cells, or one in relation to the other."""
    things = shuffled(rng, scene.objects)
    related = len(things) > 1 and rng.random() < spec.RELATED
    things = things[: 2 if related or rng.random() < 0.3 else 1]
    phrases = tuple(
        NounPhrase(
            shape=thing.shape,
            colour=thing.colour if rng.random() < 0.6 else None,
            place=None if related else thing.cell,
        )
        for thing in things
    )
    between = [pick(rng, relations_between(a, b)) if related else "and" for a, b in pairwise(things)]
    return Description(phrases, tuple(between))


def _medium(scene: Scene, rng: random.Random) -> Description:
    """One, two or three objects with some of their attributes, their layout, perhaps the background."""
    things = _some(scene, 2 if rng.random() < 0.75 else 3, rng)
    between = [_relation(a, b, rng) for a, b in pairwise(things)]
    placed = all(relation == "and" for relation in between)
    phrases = tuple(
        NounPhrase(
            1,
            thing.shape,
            thing.colour if rng.random() < 0.7 else None,
            thing.size if rng.random() < 0.4 else None,
            thing.texture if rng.random() < (0.1 if thing.texture == "plain" else 0.5) else None,
            thing.cell if placed and rng.random() < 0.4 else None,
        )
        for thing in things
    )
    return Description(phrases, tuple(between), scene.background if rng.random() < 0.45 else None)


def describe_fully(scene: Scene, rng: random.Random) -> Description:
    """Everything, in any order."""
    return _every(shuffled(rng, scene.objects), scene)


def _full(scene: Scene, rng: random.Random) -> Description:
    """Everything."""
    return _every(scene.objects, scene)


def _every(things: Sequence[SceneObject], scene: Scene) -> Description:
    return Description(tuple(_whole(thing) for thing in things), ("and",) * (len(things) - 1), scene.background)


def _some(scene: Scene, number: int, rng: random.Random) -> list[SceneObject]:
    """N objects of the scene at most, from the top left to the bottom right: annotators list them as they read.

    In random order a listing does not determine which object comes next, and captioners that learn from it name one object twice.
    """
    return sorted(shuffled(rng, scene.objects)[:number], key=lambda thing: thing.cell)


_HABITS = {
    "generic": _generic,
    "colour": _colour,
    "placed": _placed,
    "medium": _medium,
    "full": _full,
}


def _relation(first: SceneObject, second: SceneObject, rng: random.Random) -> str:
    """A relation that holds between the two, or "and"."""
    if rng.random() < 0.25:
        return "and"
    return pick(rng, relations_between(first, second))


def _joined(phrases: Sequence[NounPhrase], scene: Scene) -> Description:
    """The phrases joined by "and"; equal ones become one with a count where that count is exact."""
    merged: list[NounPhrase] = []
    for phrase, said in Counter(phrases).items():
        there = sum(_fits(phrase, thing) for thing in scene.objects)
        if said > 1 and said == there:
            merged.append(NounPhrase(said, phrase.shape, phrase.colour))
        else:
            merged += [phrase] * said
    return Description(tuple(merged), ("and",) * (len(merged) - 1))


def _fits(phrase: NounPhrase, thing: SceneObject) -> bool:
    return phrase.shape in (None, thing.shape) and phrase.colour in (None, thing.colour)
