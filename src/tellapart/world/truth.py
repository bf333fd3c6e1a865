"""Whether what a caption says is true of a scene: exactly, and for many scenes at once.

A caption is read existentially: whatever it does not mention may be there too. Every singular phrase needs an object of its
own; a stated count is exact ("two red stars" is true where there are exactly two red stars, and both are spoken for). A
relation must hold between all objects of the phrases on its two sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from tellapart.world import spec
from tellapart.world.grammar import Description, NounPhrase
from tellapart.world.scenes import VALUES, Scene

MOST_OBJECTS = max(spec.OBJECT_COUNTS)
BACKGROUNDS = tuple(spec.BACKGROUNDS)


@dataclass(frozen=True)
class SceneTable:
    """S scenes as arrays.

    Args:
        present: ``[S, 3]`` bool, which slots hold an object.
        attributes: attribute -> ``[S, 3]`` index of its value.
        row: ``[S, 3]``, 0 is top.
        column: ``[S, 3]``, 0 is left.
        background: ``[S]`` index.
    """

    present: np.ndarray
    attributes: dict[str, np.ndarray]
    row: np.ndarray
    column: np.ndarray
    background: np.ndarray

    def __len__(self) -> int:
        return len(self.background)

    @staticmethod
    def of(scenes: Sequence[Scene]) -> SceneTable:
        """The scenes, in order."""
        names = [*VALUES, "row", "column"]
        grid = {name: np.zeros((len(scenes), MOST_OBJECTS), dtype=np.int8) for name in names}
        present = np.zeros((len(scenes), MOST_OBJECTS), dtype=bool)
        for number, scene in enumerate(scenes):
            for slot, thing in enumerate(scene.objects):
                present[number, slot] = True
                grid["row"][number, slot], grid["column"][number, slot] = thing.cell
                for name, values in VALUES.items():
                    grid[name][number, slot] = values.index(getattr(thing, name))
        background = np.array([BACKGROUNDS.index(scene.background) for scene in scenes], dtype=np.int8)
        return SceneTable(present, {name: grid[name] for name in VALUES}, grid["row"], grid["column"], background)


def is_true(description: Description, scene: Scene) -> bool:
    """Whether ``description`` is true of one scene."""
    return bool(true_of(description, SceneTable.of([scene]))[0])


def true_of(description: Description, table: SceneTable) -> np.ndarray:
    """``[S]`` bool: of which scenes the description is true."""
    possible = np.ones(len(table), dtype=bool)
    if description.background is not None:
        possible = table.background == BACKGROUNDS.index(description.background)
    fits = [fitting(phrase, table) for phrase in description.phrases]
    for phrase, fit in zip(description.phrases, fits, strict=True):
        if phrase.count > 1:
            possible = possible & (fit.sum(axis=1) == phrase.count)
    singular = [i for i, phrase in enumerate(description.phrases) if phrase.count == 1]
    found = np.zeros(len(table), dtype=bool)
    for slots in permutations(range(MOST_OBJECTS), len(singular)):
        members = list(fits)
        for i, slot in zip(singular, slots, strict=True):
            members[i] = fits[i] & (np.arange(MOST_OBJECTS) == slot)
        found |= _holds(description, members, table)
    return possible & found


def fitting(phrase: NounPhrase, table: SceneTable) -> np.ndarray:
    """``[S, 3]``: which objects a phrase may refer to."""
    fit = table.present.copy()
    for name, values in VALUES.items():
        said = getattr(phrase, name)
        if said is not None:
            fit &= table.attributes[name] == values.index(said)
    if phrase.place is not None:
        fit &= (table.row == phrase.place[0]) & (table.column == phrase.place[1])
    return fit


_ORDERS = {
    "above": lambda table, a, b: table.row[:, a] < table.row[:, b],
    "below": lambda table, a, b: table.row[:, a] > table.row[:, b],
    "left of": lambda table, a, b: table.column[:, a] < table.column[:, b],
    "right of": lambda table, a, b: table.column[:, a] > table.column[:, b],
}


def _holds(description: Description, members: Sequence[np.ndarray], table: SceneTable) -> np.ndarray:
    """``[S]``: whether these objects (``[S, 3]`` a phrase) match the description; none is mentioned twice."""
    holds = np.sum(members, axis=0).max(axis=1) <= 1
    for member in members:
        holds &= member.any(axis=1)
    for first, second, relation in zip(members, members[1:], description.relations, strict=False):
        if relation in _ORDERS:
            for a in range(MOST_OBJECTS):
                for b in range(MOST_OBJECTS):
                    holds &= ~(first[:, a] & second[:, b]) | _ORDERS[relation](table, a, b)
    return holds
