"""What people write about a moving scene."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tellapart.world.grammar import NounPhrase
from tellapart.world.scenes import SceneObject, pick, pick_weighted, shuffled
from tellapart.world.video import spec
from tellapart.world.video.grammar import AND, THEN, Clause, MovingDescription, write
from tellapart.world.video.scenes import Event, MovingScene


def full_description(moving: MovingScene) -> str:
    """Everything about ``moving`` in one caption: all that the language can say about it."""
    return write(describe_fully(moving))


def describe(moving: MovingScene, rng: random.Random) -> MovingDescription:
    """What one annotator says of ``moving``: habits differ in how much they mention, and all of it is true."""
    return _HABITS[pick_weighted(rng, spec.HABITS)](moving, rng)


def write_as_annotator(description: MovingDescription, rng: random.Random) -> str:
    """``description`` in one annotator's words: synonyms and prefixes come and go."""
    prefix = pick(rng, spec.PREFIXES) if rng.random() < spec.PREFIX_RATE else ""
    return write(description, prefix=prefix, choose=lambda word: _wording(word, rng))


def references(moving: MovingScene, rng: random.Random) -> list[str]:
    """The captions of five annotators."""
    return [write_as_annotator(describe(moving, rng), rng) for _ in range(spec.REFERENCES_PER_CLIP)]


def describe_fully(moving: MovingScene) -> MovingDescription:
    """All events in their order, then the objects that stay, with all attributes."""
    return _told(moving, [_whole(thing) for thing in moving.scene.objects], moving.scene.background)


def _wording(word: str, rng: random.Random) -> str:
    other = spec.SYNONYMS.get(word)
    return other if other is not None and rng.random() < spec.SYNONYM_RATE else word


def _whole(thing: SceneObject) -> NounPhrase:
    return NounPhrase(1, thing.shape, thing.colour, thing.size, thing.texture, thing.cell)


def _clause(phrase: NounPhrase, event: Event | None) -> Clause:
    return Clause(phrase, spec.STAYS) if event is None else Clause(phrase, event.verb, event.to or None)


def _told(moving: MovingScene, phrases: Sequence[NounPhrase], background: str | None) -> MovingDescription:
    """All events in their order, then the objects that stay."""
    clauses = [_clause(phrases[event.thing], event) for event in moving.events]
    orders = [THEN] * max(0, len(clauses) - 1)
    for number, phrase in enumerate(phrases):
        if moving.event_of(number) is None:
            orders += [AND] if clauses else []
            clauses.append(_clause(phrase, None))
    return MovingDescription(tuple(clauses), tuple(orders), background)


def _generic(moving: MovingScene, rng: random.Random) -> MovingDescription:
    """That something moves or happens, mostly by shape alone and without a direction."""
    number = pick(rng, moving.events).thing if moving.events else rng.randrange(len(moving.scene.objects))
    event, thing = moving.event_of(number), moving.scene.objects[number]
    phrase = NounPhrase(shape=thing.shape if rng.random() < 0.8 else None)
    clause = _clause(phrase, event)
    return MovingDescription((Clause(phrase, "moves") if clause.verb == "moves" else clause,))


def _events(moving: MovingScene, rng: random.Random) -> MovingDescription:
    """What happens, to objects named by colour and shape; in its order, or joined by "and" in any."""
    phrases = [
        NounPhrase(
            shape=thing.shape if rng.random() < 0.9 else None, colour=thing.colour if rng.random() < 0.8 else None
        )
        for thing in moving.scene.objects
    ]
    if not moving.events:
        return MovingDescription((_clause(phrases[0], None),))
    if rng.random() < spec.ORDERED:
        return MovingDescription(
            tuple(_clause(phrases[event.thing], event) for event in moving.events), (THEN,) * (len(moving.events) - 1)
        )
    clauses = tuple(_clause(phrases[event.thing], event) for event in shuffled(rng, moving.events))
    return MovingDescription(clauses, (AND,) * (len(clauses) - 1))


def _medium(moving: MovingScene, rng: random.Random) -> MovingDescription:
    """All events in order with some attributes, perhaps what stays and the background."""
    phrases = [
        NounPhrase(
            1,
            thing.shape,
            thing.colour if rng.random() < 0.85 else None,
            thing.size if rng.random() < 0.35 else None,
            thing.texture if thing.texture != "plain" and rng.random() < 0.4 else None,
            thing.cell if rng.random() < 0.3 else None,
        )
        for thing in moving.scene.objects
    ]
    background = moving.scene.background if rng.random() < 0.4 else None
    told = _told(moving, phrases, background)
    kept = len(moving.events) if moving.events and rng.random() < 0.5 else len(told.clauses)
    return MovingDescription(told.clauses[:kept], told.orders[: kept - 1], background)


def _full(moving: MovingScene, rng: random.Random) -> MovingDescription:
    """Everything."""
    return describe_fully(moving)


_HABITS = {"generic": _generic, "events": _events, "medium": _medium, "full": _full}
