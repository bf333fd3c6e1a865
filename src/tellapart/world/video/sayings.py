"""True and false statements about a clip: the texts that train ``world/video-listener``.

As in the still world (``tellapart.world.sayings``) texts are drawn widely, and ``first_wrong`` labels them; nothing is assumed
false because it was changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tellapart.world.grammar import NounPhrase
from tellapart.world.sayings import BACKGROUNDS, BY_LIKENESS, CELLS, break_words
from tellapart.world.scenes import VALUES, SceneObject, pick, pick_weighted, shuffled
from tellapart.world.video import spec
from tellapart.world.video.captions import describe, describe_fully, write_as_annotator
from tellapart.world.video.grammar import AND, THEN, Clause, MovingDescription
from tellapart.world.video.prefixes import words_of
from tellapart.world.video.scenes import Event, MovingScene
from tellapart.world.video.vocabulary import MAX_NEW_TOKENS, WORDS

ANNOTATOR, FULL = 0.3, 0.1
"""How often a true text is an annotator's, and how often it says everything."""

SAID = {"shape": 0.93, "colour": 0.75, "size": 0.3, "texture": 0.35, "place": 0.3, "verb": 0.8, "to": 0.85}
"""How often other texts say what of an object."""

BACKGROUND = 0.3
"""How often other texts say the background."""

ORDERED = 0.7
"""How often other texts give the order of two events."""


def draw_texts(moving: MovingScene, rng: random.Random) -> list[str]:
    """Four texts about a clip: a true one, the same with a change, a careless one, and one with broken language; commas are words
    of their own.

    Which of them are true is not said: two changes may undo each other, and a broken text may happen to be whole.
    """
    true = draw_text(moving, rng)
    false = change(true, moving, rng)
    if rng.random() < 0.2:
        false = change(false, moving, rng)
    careless = careless_text(moving, rng)
    if rng.random() < 0.4:
        careless = change(careless, moving, rng)
    texts = [words_of(write_as_annotator(said, rng)) for said in (true, false, careless)]
    texts.append(break_words(pick(rng, texts), rng, WORDS))
    return [" ".join(text.split()[:MAX_NEW_TOKENS]) for text in texts]


def draw_text(moving: MovingScene, rng: random.Random) -> MovingDescription:
    """A true text about a clip."""
    share = rng.random()
    if share < ANNOTATOR:
        return describe(moving, rng)
    if share < ANNOTATOR + FULL:
        return describe_fully(moving)
    count = pick_weighted(rng, {1: 0.4, 2: 0.4, 3: 0.2})
    numbers = shuffled(rng, range(len(moving.scene.objects)))[:count]
    if rng.random() < ORDERED:  # so that most pairs of events are told in their order
        numbers = sorted(numbers, key=lambda number: _turn(moving, number))
    return _about(numbers, moving, rng, ordered=lambda one, other: _turn(moving, one) < _turn(moving, other))


def careless_text(moving: MovingScene, rng: random.Random) -> MovingDescription:
    """A text of one to four clauses, each about any object, so that many say one twice, in any order of events."""
    numbers = range(len(moving.scene.objects))
    drawn = [pick(rng, numbers) for _ in range(pick_weighted(rng, {1: 0.1, 2: 0.45, 3: 0.3, 4: 0.15}))]
    return _about(drawn, moving, rng, ordered=lambda one, other: True)


def _turn(moving: MovingScene, number: int) -> int:
    """Place of an object's event in time; what stays comes last."""
    event = moving.event_of(number)
    return len(moving.events) if event is None else moving.events.index(event)


def _about(
    numbers: Sequence[int], moving: MovingScene, rng: random.Random, *, ordered: Callable[[int, int], bool]
) -> MovingDescription:
    """Clauses about objects; "then" may stand between two events that ``ordered`` allows."""
    clauses = tuple(_clause(moving.scene.objects[number], moving.event_of(number), rng) for number in numbers)
    orders = tuple(
        THEN if one.is_event and other.is_event and ordered(i, j) and rng.random() < ORDERED else AND
        for (one, other), (i, j) in zip(pairwise(clauses), pairwise(numbers), strict=True)
    )
    return MovingDescription(clauses, orders, moving.scene.background if rng.random() < BACKGROUND else None)


def _clause(thing: SceneObject, event: Event | None, rng: random.Random) -> Clause:
    def said(name: str) -> bool:
        return rng.random() < SAID[name]

    values: dict[str, Any] = {name: getattr(thing, name) for name in VALUES if said(name)}
    if values.get("texture") == "plain" and rng.random() < 0.7:
        del values["texture"]
    phrase = NounPhrase(place=thing.cell if said("place") else None, **values)
    if not said("verb"):
        return Clause(phrase)
    if event is None:
        return Clause(phrase, spec.STAYS)
    return Clause(phrase, event.verb, event.to if event.to and (event.verb == "turns" or said("to")) else None)


def change(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription:
    """``said`` with one thing changed, usually into something false that the clip makes plausible."""
    made = CHANGES[pick_weighted(rng, CHANGE_WEIGHTS)](said, moving, rng)
    return _with_other_motion(said, moving, rng) if made is None else made


def _put(said: MovingDescription, place: int, *clauses: Clause) -> MovingDescription:
    """``said`` with ``clauses`` in place of as many from ``place`` on, made whole again."""
    changed = (*said.clauses[:place], *clauses, *said.clauses[place + len(clauses) :])
    return _whole(replace(said, clauses=changed))


def _whole(said: MovingDescription) -> MovingDescription:
    """``said`` with "and" for each "then" that does not stand between two events, as the language asks."""
    orders = tuple(
        order if order == AND or (one.is_event and other.is_event) else AND
        for order, (one, other) in zip(said.orders, pairwise(said.clauses), strict=True)
    )
    return replace(said, orders=orders)


def _with_other_motion(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription:
    """Some object does something else, or does it to another place or colour."""
    place = rng.randrange(len(said.clauses))
    clause = said.clauses[place]
    choices = _targets(clause.verb, clause.phrase.colour)
    others = [to for to in choices if to != clause.to]
    if others and rng.random() < 0.6:
        return _put(said, place, replace(clause, to=pick(rng, others)))
    verb = pick(rng, [verb for verb in (*spec.VERBS, spec.STAYS) if verb != clause.verb])
    targets = _targets(verb, clause.phrase.colour)
    told = targets and (verb == "turns" or rng.random() < SAID["to"])
    return _put(said, place, Clause(clause.phrase, verb, pick(rng, targets) if told else None))


def _targets(verb: str | None, colour: str | None) -> list[str]:
    """Where an object may move, or what it may turn."""
    found = {"moves": tuple(spec.DIRECTIONS), "turns": VALUES["colour"]}.get(verb or "", ())
    return [to for to in found if to != colour]


def _with_other_order(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription | None:
    """Two events exchanged around a "then", or a "then" where there was none."""
    places = [i for i, (one, other) in enumerate(pairwise(said.clauses)) if one.is_event and other.is_event]
    if not places:
        return None
    place = pick(rng, places)
    clauses, orders = list(said.clauses), list(said.orders)
    if orders[place] == AND and rng.random() < 0.5:
        orders[place] = THEN
    else:
        clauses[place], clauses[place + 1] = clauses[place + 1], clauses[place]
    return _whole(replace(said, clauses=tuple(clauses), orders=tuple(orders)))


def _with_other_actors(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription | None:
    """Two neighbouring clauses exchange their objects."""
    if len(said.clauses) < 2:
        return None
    place = rng.randrange(len(said.clauses) - 1)
    first, second = said.clauses[place : place + 2]
    return _put(said, place, replace(first, phrase=second.phrase), replace(second, phrase=first.phrase))


def _with_other_value(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription:
    """Another value of an attribute, in half of the cases that of an object of the clip; or one where none was said."""
    place, name = rng.randrange(len(said.clauses)), pick(rng, tuple(VALUES))
    clause = said.clauses[place]
    present = getattr(clause.phrase, name)
    here = [value for thing in moving.scene.objects if (value := getattr(thing, name)) != present]
    value = pick(rng, here if here and rng.random() < 0.5 else [value for value in VALUES[name] if value != present])
    return _put(said, place, replace(clause, phrase=replace(clause.phrase, **{name: value})))


def _with_other_place(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription:
    place = rng.randrange(len(said.clauses))
    clause = said.clauses[place]
    cell = pick(rng, [cell for cell in CELLS if cell != clause.phrase.place])
    return _put(said, place, replace(clause, phrase=replace(clause.phrase, place=cell)))


def _with_background_changed(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription:
    """Another background, in half of the cases the one whose colour is nearest to the clip's."""
    others = [name for name in BACKGROUNDS if name != said.background]
    alike = [name for name in BY_LIKENESS[moving.scene.background] if name in others]
    return replace(said, background=alike[0] if rng.random() < 0.5 else pick(rng, others))


def _with_clause_said_again(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription:
    """A clause once more, perhaps with less in it, anywhere after."""
    clause = pick(rng, said.clauses)
    for name in ("size", "texture", "colour", "place"):
        if rng.random() < 0.25:
            silent: dict[str, Any] = {name: None}
            clause = replace(clause, phrase=replace(clause.phrase, **silent))
    return _with_clause(said, clause, rng)


def _with_clause_invented(said: MovingDescription, moving: MovingScene, rng: random.Random) -> MovingDescription:
    shape, colour, size, texture = (pick(rng, values) for values in VALUES.values())
    thing, verb = SceneObject(shape, colour, size, texture, *pick(rng, CELLS)), pick_weighted(rng, spec.VERBS)
    targets = _targets(verb, colour)
    return _with_clause(said, _clause(thing, Event(0, verb, pick(rng, targets) if targets else ""), rng), rng)


def _with_clause(said: MovingDescription, clause: Clause, rng: random.Random) -> MovingDescription:
    at = rng.randrange(len(said.clauses)) + 1
    order = AND if rng.random() < 0.6 else THEN
    clauses = (*said.clauses[:at], clause, *said.clauses[at:])
    return _whole(replace(said, clauses=clauses, orders=(*said.orders[: at - 1], order, *said.orders[at - 1 :])))


CHANGES: dict[str, Callable[[MovingDescription, MovingScene, random.Random], MovingDescription | None]] = {
    "motion": _with_other_motion,
    "order": _with_other_order,
    "actors": _with_other_actors,
    "value": _with_other_value,
    "place": _with_other_place,
    "background": _with_background_changed,
    "again": _with_clause_said_again,
    "invented": _with_clause_invented,
}
"""Kind of change -> what makes it; none where the text has nothing to change so."""

CHANGE_WEIGHTS = {
    "motion": 0.22,
    "order": 0.13,
    "actors": 0.12,
    "value": 0.3,
    "place": 0.07,
    "background": 0.07,
    "again": 0.05,
    "invented": 0.04,
}
"""Kind of change -> how often it is made, relative to the others."""
