"""Scenes: what is in a picture, how scenes are drawn, and how they are split."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

from tellapart.world import spec

T = TypeVar("T")


@dataclass(frozen=True)
class SceneObject:
    """One object and its cell of the 2 x 2 grid: ``row`` 0 is top, ``column`` 0 is left."""

    shape: str
    colour: str
    size: str
    texture: str
    row: int
    column: int

    @property
    def cell(self) -> tuple[int, int]:
        """Row and column."""
        return self.row, self.column


@dataclass(frozen=True)
class Scene:
    """One to three objects in different cells, in reading order, on a plain background."""

    objects: tuple[SceneObject, ...]
    background: str


VALUES: dict[str, tuple[str, ...]] = {
    "shape": spec.SHAPES,
    "colour": tuple(spec.COLOURS),
    "size": tuple(spec.SIZES),
    "texture": tuple(spec.TEXTURES),
}
"""Attribute of an object -> its values."""


def pick(rng: random.Random, choices: Sequence[T]) -> T:
    """One of ``choices``, all equally likely."""
    return choices[rng.randrange(len(choices))]


def pick_weighted(rng: random.Random, weights: Mapping[T, float]) -> T:
    """One of the keys, by weight."""
    return rng.choices(list(weights), weights=list(weights.values()))[0]


def shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    """``items`` in random order."""
    return rng.sample(items, len(items))


def relations_between(first: SceneObject, second: SceneObject) -> list[str]:
    """The one or two relations of ``first`` to ``second``."""
    holding = []
    if first.row != second.row:
        holding.append("above" if first.row < second.row else "below")
    if first.column != second.column:
        holding.append("left of" if first.column < second.column else "right of")
    return holding


def draw_scene(rng: random.Random) -> Scene:
    """A scene drawn from the world's distribution."""
    cells = sorted(rng.sample(range(4), pick_weighted(rng, spec.OBJECT_COUNTS)))
    objects = tuple(
        SceneObject(
            pick(rng, spec.SHAPES),
            pick(rng, VALUES["colour"]),
            pick(rng, VALUES["size"]),
            pick_weighted(rng, spec.TEXTURES),
            *divmod(cell, 2),
        )
        for cell in cells
    )
    return Scene(objects, pick(rng, tuple(spec.BACKGROUNDS)))


def mutate(scene: Scene, rng: random.Random) -> Scene:
    """``scene`` really changed, in one of the ways of ``spec.MUTATIONS``."""
    changed = _MUTATIONS[pick_weighted(rng, spec.MUTATIONS)](scene, rng)
    return _with_attributes_changed(scene, rng) if changed is None else changed


def _with_attributes_changed(scene: Scene, rng: random.Random) -> Scene:
    """One or two attributes changed, of any object or the background."""
    places: list[tuple[int, str]] = [(-1, "background")]
    places += [(i, name) for i in range(len(scene.objects)) for name in VALUES]
    for where, name in rng.sample(places, 2 if rng.random() < spec.MUTATION_TWO else 1):
        if where < 0:
            scene = replace(scene, background=another(rng, tuple(spec.BACKGROUNDS), scene.background))
        else:
            thing = scene.objects[where]
            change: dict[str, Any] = {name: another(rng, VALUES[name], getattr(thing, name))}
            changed = replace(thing, **change)
            scene = replace(scene, objects=(*scene.objects[:where], changed, *scene.objects[where + 1 :]))
    return scene


def _with_an_object_moved(scene: Scene, rng: random.Random) -> Scene:
    """One object in a cell that was empty."""
    taken = {thing.cell for thing in scene.objects}
    row, column = pick(rng, [divmod(cell, 2) for cell in range(4) if divmod(cell, 2) not in taken])
    where = rng.randrange(len(scene.objects))
    others = (*scene.objects[:where], *scene.objects[where + 1 :])
    return _in_reading_order((*others, replace(scene.objects[where], row=row, column=column)), scene.background)


def _with_cells_exchanged(scene: Scene, rng: random.Random) -> Scene | None:
    """Two objects in each other's cells; none if that changes nothing."""
    pairs = [(a, b) for a, b in combinations(scene.objects, 2) if replace(a, row=b.row, column=b.column) != b]
    if not pairs:
        return None
    first, second = pick(rng, pairs)
    others = tuple(thing for thing in scene.objects if thing not in (first, second))
    exchanged = (
        replace(first, row=second.row, column=second.column),
        replace(second, row=first.row, column=first.column),
    )
    return _in_reading_order((*others, *exchanged), scene.background)


def _with_values_exchanged(scene: Scene, rng: random.Random) -> Scene | None:
    """Two objects with each other's value of one attribute; none if all have the same."""
    pairs = [
        (a, b, name)
        for a, b in combinations(scene.objects, 2)
        for name in VALUES
        if getattr(a, name) != getattr(b, name)
    ]
    if not pairs:
        return None
    first, second, name = pick(rng, pairs)
    to_first: dict[str, Any] = {name: getattr(second, name)}
    to_second: dict[str, Any] = {name: getattr(first, name)}
    changed = {first: replace(first, **to_first), second: replace(second, **to_second)}
    return Scene(tuple(changed.get(thing, thing) for thing in scene.objects), scene.background)


_MUTATIONS: dict[str, Callable[[Scene, random.Random], Scene | None]] = {
    "attributes": _with_attributes_changed,
    "moved": _with_an_object_moved,
    "cells": _with_cells_exchanged,
    "values": _with_values_exchanged,
}
"""Kinds of ``spec.MUTATIONS`` -> what makes them."""


def _in_reading_order(objects: Sequence[SceneObject], background: str) -> Scene:
    return Scene(tuple(sorted(objects, key=lambda thing: thing.cell)), background)


def draw_cluster(
    rng: random.Random,
    taken: Collection[T],
    draw: Callable[[random.Random], T],
    change: Callable[[T, random.Random], T],
) -> list[T]:
    """A scene and its mutants, all different from each other and from ``taken``."""
    while True:
        cluster = [draw(rng)]
        for _ in range(20 * spec.CLUSTER_SIZE):
            mutant = change(cluster[0], rng)
            if len(cluster) < spec.CLUSTER_SIZE and mutant not in cluster and mutant not in taken:
                cluster.append(mutant)
        if len(cluster) == spec.CLUSTER_SIZE and cluster[0] not in taken:
            return cluster


def draw_splits(sizes: Mapping[str, int], seed: int) -> dict[str, list[Scene]]:
    """Split -> its scenes, cluster after cluster; see ``draw_clusters``."""
    return draw_clusters(sizes, seed, draw_scene, mutate)


def draw_clusters(
    sizes: Mapping[str, int],
    seed: int | str,
    draw: Callable[[random.Random], T],
    change: Callable[[T, random.Random], T],
) -> dict[str, list[T]]:
    """Split -> its scenes, cluster after cluster.

    A held-out scene occurs nowhere else: these splits are drawn first, and the others keep clear of them. Scenes of the
    others may recur, as pictures with other jitter and noise: there are too few single objects for all to differ.

    Args:
        sizes: split -> number of scenes.
        seed: what everything is drawn from.
        draw: draws a scene.
        change: a scene and random numbers -> a mutant of it.
    """
    rng = random.Random(f"{seed}-scenes")
    held_out: set[T] = set()
    splits: dict[str, list[T]] = {}
    for split in sorted(sizes, key=lambda name: name not in spec.HELD_OUT):
        scenes: list[T] = []
        while len(scenes) < sizes[split]:
            scenes += draw_cluster(rng, held_out, draw, change)
            if split in spec.HELD_OUT:
                held_out.update(scenes[-spec.CLUSTER_SIZE :])
        splits[split] = scenes[: sizes[split]]
    return {split: splits[split] for split in sizes}


def another(rng: random.Random, values: Sequence[str], present: str) -> str:
    """One of ``values`` that is not ``present``."""
    return pick(rng, [value for value in values if value != present])
