"""What models of the moving world are asked: several texts about a clip, of which one is true.

The texts are written by other code than the negatives that teach models, and each false one is checked to be false.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tellapart.world.grammar import NounPhrase
from tellapart.world.questions import Question
from tellapart.world.scenes import VALUES, SceneObject, pick
from tellapart.world.video import spec
from tellapart.world.video.grammar import THEN, Clause, MovingDescription, write
from tellapart.world.video.scenes import Event, MovingScene
from tellapart.world.video.truth import is_true

SEED = 73

Ask = Callable[[MovingScene, random.Random], list[MovingDescription] | None]
"""Moving scene and random numbers -> a true description and others, or none where the scene allows no question."""


def moving_questions(scenes: Sequence[MovingScene]) -> dict[str, list[Question]]:
    """Question -> what is asked of the clips that allow it.

    - ``shape``, ``colour``: an object, with a text for each value.
    - ``verb``: an object that moves, turns, appears, vanishes or stays.
    - ``direction``: an object that moves, with a text for each direction.
    - ``turned``: an object that turns, with a text for each other colour.
    - ``actor``: two objects, each with what it does, against the same exchanged.
    - ``order``: two events, against the other order.

    Args:
        scenes: one per clip, in the order of the clips.
    """
    found: dict[str, list[Question]] = {}
    for name, ask in _ASK.items():
        rng = random.Random(f"{SEED}-{name}")
        found[name] = []
        for row, moving in enumerate(scenes):
            descriptions = ask(moving, rng)
            if descriptions is None:
                continue
            true, *others = descriptions
            false = [other for other in others if not is_true(other, moving)]
            if is_true(true, moving) and len(false) == len(others):
                found[name].append(Question(row, tuple(write(said) for said in (true, *false))))
    return found


def _named(thing: SceneObject) -> NounPhrase:
    return NounPhrase(shape=thing.shape, colour=thing.colour)


def _doing(moving: MovingScene, number: int) -> Clause:
    event = moving.event_of(number)
    phrase = _named(moving.scene.objects[number])
    return Clause(phrase, spec.STAYS) if event is None else Clause(phrase, event.verb, event.to or None)


def _one(clause: Clause) -> MovingDescription:
    return MovingDescription((clause,))


def _attribute(name: str) -> Ask:
    def ask(moving: MovingScene, rng: random.Random) -> list[MovingDescription] | None:
        thing = pick(rng, moving.scene.objects)
        values = [getattr(thing, name), *(value for value in VALUES[name] if value != getattr(thing, name))]
        phrases = [NounPhrase(**{"shape": thing.shape, "colour": thing.colour} | {name: value}) for value in values]
        return [_one(Clause(phrase)) for phrase in phrases]

    return ask


def _verb(moving: MovingScene, rng: random.Random) -> list[MovingDescription] | None:
    number = rng.randrange(len(moving.scene.objects))
    true = _doing(moving, number)
    colour = pick(rng, [value for value in VALUES["colour"] if value != true.phrase.colour])
    all_verbs = {
        verb: Clause(true.phrase, verb, colour if verb == "turns" else None) for verb in (*spec.VERBS, spec.STAYS)
    }
    own = Clause(true.phrase, true.verb, true.to if true.verb == "turns" else None)
    return [_one(own), *(_one(clause) for verb, clause in all_verbs.items() if verb != true.verb)]


def _event(moving: MovingScene, verb: str, rng: random.Random) -> Event | None:
    events = [event for event in moving.events if event.verb == verb]
    return pick(rng, events) if events else None


def _target(verb: str) -> Ask:
    def ask(moving: MovingScene, rng: random.Random) -> list[MovingDescription] | None:
        event = _event(moving, verb, rng)
        if event is None:
            return None
        thing = moving.scene.objects[event.thing]
        values = tuple(spec.DIRECTIONS) if verb == "moves" else VALUES["colour"]
        others = [value for value in values if value != event.to and (verb == "moves" or value != thing.colour)]
        return [_one(Clause(_named(thing), verb, value)) for value in (event.to, *others)]

    return ask


def _actor(moving: MovingScene, rng: random.Random) -> list[MovingDescription] | None:
    if len(moving.scene.objects) < 2:
        return None
    first, second = (_doing(moving, number) for number in rng.sample(range(len(moving.scene.objects)), 2))
    if (first.verb, first.to) == (second.verb, second.to):
        return None
    exchanged = Clause(first.phrase, second.verb, second.to), Clause(second.phrase, first.verb, first.to)
    return [MovingDescription((first, second), ("and",)), MovingDescription(exchanged, ("and",))]


def _order(moving: MovingScene, rng: random.Random) -> list[MovingDescription] | None:
    if len(moving.events) < 2:
        return None
    first, second = (_doing(moving, event.thing) for event in moving.events)
    return [MovingDescription((first, second), (THEN,)), MovingDescription((second, first), (THEN,))]


_ASK: dict[str, Ask] = {
    "shape": _attribute("shape"),
    "colour": _attribute("colour"),
    "verb": _verb,
    "direction": _target("moves"),
    "turned": _target("turns"),
    "actor": _actor,
    "order": _order,
}
