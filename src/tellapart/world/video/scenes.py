"""Moving scenes: objects, what happens to them and in which order; how they are drawn, and how they are changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from tellapart.world import spec as still
from tellapart.world.scenes import VALUES, Scene, SceneObject, another, pick, pick_weighted, shuffled
from tellapart.world.video import spec

Cell = tuple[int, int]


@dataclass(frozen=True)
class Event:
    """What one object does.

    Args:
        thing: its place among the objects of the scene.
        verb: ``moves``, ``turns``, ``appears`` or ``vanishes``.
        to: where it moves (``left``, ``right``, ``up``, ``down``) or the colour that it turns, else empty.
    """

    thing: int
    verb: str
    to: str = ""


@dataclass(frozen=True)
class MovingScene:
    """A scene as it is first seen, and what happens in it.

    Args:
        scene: one to three objects in reading order; those that appear are listed where they appear, and those that move or turn
            are as they were before.
        events: at most two, in the order of time, one per object at most. No cell is ever used by two objects.
    """

    scene: Scene
    events: tuple[Event, ...] = ()

    def event_of(self, thing: int) -> Event | None:
        """What the object does; None where nothing happens to it."""
        return next((event for event in self.events if event.thing == thing), None)


def target(thing: SceneObject, direction: str) -> Cell:
    """The cell next to an object's in a direction; it may be outside the grid."""
    down, right = spec.DIRECTIONS[direction]
    return thing.row + down, thing.column + right


def is_possible(moving: MovingScene) -> bool:
    """Whether all moves end inside the grid, in cells that no other object ever uses, and all turns change a colour."""
    objects = moving.scene.objects
    cells = [thing.cell for thing in objects]
    cells += [target(objects[event.thing], event.to) for event in moving.events if event.verb == "moves"]
    inside = all(0 <= row < len(still.ROWS) and 0 <= column < len(still.COLUMNS) for row, column in cells)
    turns = all(event.to != objects[event.thing].colour for event in moving.events if event.verb == "turns")
    return inside and turns and len(set(cells)) == len(cells)


def backwards(moving: MovingScene) -> MovingScene:
    """What the clip shows from its last frame to its first."""
    opposite = {"left": "right", "right": "left", "up": "down", "down": "up"}
    after = list[tuple[SceneObject, Event | None]]()
    for number, thing in enumerate(moving.scene.objects):
        event = moving.event_of(number)
        if event is None:
            after.append((thing, None))
        elif event.verb == "moves":
            row, column = target(thing, event.to)
            after.append((replace(thing, row=row, column=column), Event(number, "moves", opposite[event.to])))
        elif event.verb == "turns":
            after.append((replace(thing, colour=event.to), Event(number, "turns", thing.colour)))
        else:
            after.append((thing, Event(number, "vanishes" if event.verb == "appears" else "appears")))
    order = sorted(range(len(after)), key=lambda number: after[number][0].cell)
    events = tuple(
        replace(found, thing=order.index(event.thing))
        for event in moving.events[::-1]
        if (found := after[event.thing][1]) is not None
    )
    return MovingScene(replace(moving.scene, objects=tuple(after[number][0] for number in order)), events)


def draw_moving_scene(rng: random.Random) -> MovingScene:
    """A moving scene drawn from the world's distribution."""
    cells = sorted(rng.sample(range(4), pick_weighted(rng, spec.OBJECT_COUNTS)))
    objects = tuple(
        SceneObject(
            pick(rng, VALUES["shape"]),
            pick(rng, VALUES["colour"]),
            pick(rng, VALUES["size"]),
            pick_weighted(rng, still.TEXTURES),
            *divmod(cell, 2),
        )
        for cell in cells
    )
    moving = MovingScene(Scene(objects, pick(rng, tuple(still.BACKGROUNDS))))
    count = min(len(objects), pick_weighted(rng, spec.EVENT_COUNTS))
    for thing in shuffled(rng, range(len(objects)))[:count]:
        moving = replace(moving, events=(*moving.events, _draw_event(moving, thing, rng)))
    return moving


def _draw_event(moving: MovingScene, thing: int, rng: random.Random, instead_of: Event | None = None) -> Event:
    """Something that can happen to an object next to the other events, but not what is ``instead_of``."""
    others = tuple(event for event in moving.events if event.thing != thing)
    while True:
        verb = pick_weighted(rng, spec.VERBS)
        choices = {"moves": tuple(spec.DIRECTIONS), "turns": VALUES["colour"]}.get(verb, ("",))
        event = Event(thing, verb, pick(rng, choices))
        if event != instead_of and is_possible(replace(moving, events=(*others, event))):
            return event


def mutate(moving: MovingScene, rng: random.Random) -> MovingScene:
    """``moving`` really changed, in one of the ways of ``spec.MUTATIONS``."""
    changed = _MUTATIONS[pick_weighted(rng, spec.MUTATIONS)](moving, rng)
    return with_other_motion(moving, rng) if changed is None else changed


def with_other_motion(moving: MovingScene, rng: random.Random) -> MovingScene:
    """One object does something else; where nothing happened, something does."""
    if not moving.events:
        return replace(moving, events=(_draw_event(moving, rng.randrange(len(moving.scene.objects)), rng),))
    place = rng.randrange(len(moving.events))
    event = _draw_event(moving, moving.events[place].thing, rng, instead_of=moving.events[place])
    return replace(moving, events=(*moving.events[:place], event, *moving.events[place + 1 :]))


def with_other_order(moving: MovingScene, rng: random.Random | None = None) -> MovingScene | None:
    """Both events in the other order; none if there are not two."""
    return None if len(moving.events) < 2 else replace(moving, events=moving.events[::-1])


def with_other_actors(moving: MovingScene, rng: random.Random) -> MovingScene | None:
    """Two objects exchange what they do, one of them perhaps nothing; none if that is impossible or changes nothing."""
    found = []
    for first, second in combinations(range(len(moving.scene.objects)), 2):
        exchanged = {first: second, second: first}
        events = tuple(replace(event, thing=exchanged.get(event.thing, event.thing)) for event in moving.events)
        changed = replace(moving, events=events)
        if changed != moving and is_possible(changed):
            found.append(changed)
    return pick(rng, found) if found else None


def with_other_attributes(moving: MovingScene, rng: random.Random) -> MovingScene | None:
    """One or two attributes changed, of any object or the background; none if an object would turn its own colour."""
    scene = moving.scene
    places: list[tuple[int, str]] = [(-1, "background")]
    places += [(i, name) for i in range(len(scene.objects)) for name in ("shape", "colour", "size", "texture")]
    for where, name in rng.sample(places, 2 if rng.random() < still.MUTATION_TWO else 1):
        if where < 0:
            scene = replace(scene, background=another(rng, tuple(still.BACKGROUNDS), scene.background))
        else:
            thing = scene.objects[where]
            change: dict[str, Any] = {name: another(rng, VALUES[name], getattr(thing, name))}
            objects = (*scene.objects[:where], replace(thing, **change), *scene.objects[where + 1 :])
            scene = replace(scene, objects=objects)
    changed = replace(moving, scene=scene)
    return changed if is_possible(changed) else None


_MUTATIONS: dict[str, Callable[[MovingScene, random.Random], MovingScene | None]] = {
    "motion": with_other_motion,
    "order": with_other_order,
    "actors": with_other_actors,
    "attributes": with_other_attributes,
}
"""Kinds of ``spec.MUTATIONS`` -> what makes them."""
