"""Whether what a caption says is true of a clip: exactly, and for many clips at once.

As in the still world a caption is read existentially, and every clause needs an object of its own. An order must hold between
the objects of the clauses on its two sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from tellapart.world.scenes import VALUES
from tellapart.world.truth import BACKGROUNDS, MOST_OBJECTS, SceneTable, fitting
from tellapart.world.video import spec
from tellapart.world.video.grammar import THEN, Clause, MovingDescription
from tellapart.world.video.scenes import MovingScene

VERBS = (spec.STAYS, *spec.VERBS)
TARGETS = ("", *spec.DIRECTIONS, *VALUES["colour"])


@dataclass(frozen=True)
class MovingTable:
    """S moving scenes as arrays.

    Args:
        scenes: the scenes as they are first seen.
        verb: ``[S, 3]`` index in ``VERBS``.
        to: ``[S, 3]`` index in ``TARGETS``.
        turn: ``[S, 3]`` place of the object's event in time, from 0; -1 where it has none.
    """

    scenes: SceneTable
    verb: np.ndarray
    to: np.ndarray
    turn: np.ndarray

    def __len__(self) -> int:
        return len(self.scenes)

    @staticmethod
    def of(moving: Sequence[MovingScene]) -> MovingTable:
        """The scenes, in order."""
        verb, to = (np.zeros((len(moving), MOST_OBJECTS), dtype=np.int8) for _ in range(2))
        turn = np.full((len(moving), MOST_OBJECTS), -1, dtype=np.int8)
        for number, one in enumerate(moving):
            for place, event in enumerate(one.events):
                verb[number, event.thing], to[number, event.thing] = VERBS.index(event.verb), TARGETS.index(event.to)
                turn[number, event.thing] = place
        return MovingTable(SceneTable.of([one.scene for one in moving]), verb, to, turn)


def is_true(description: MovingDescription, moving: MovingScene) -> bool:
    """Whether ``description`` is true of one clip."""
    return bool(true_of(description, MovingTable.of([moving]))[0])


def true_of(description: MovingDescription, table: MovingTable) -> np.ndarray:
    """``[S]`` bool: of which clips the description is true."""
    fits = [_fits(clause, table) for clause in description.clauses]
    found = np.zeros(len(table), dtype=bool)
    for slots in permutations(range(MOST_OBJECTS), len(fits)):
        holds = np.all([fit[:, slot] for fit, slot in zip(fits, slots, strict=True)], axis=0)
        for first, second, order in zip(slots, slots[1:], description.orders, strict=False):
            if order == THEN:
                holds &= table.turn[:, first] < table.turn[:, second]
        found |= holds
    if description.background is not None:
        found &= table.scenes.background == BACKGROUNDS.index(description.background)
    return found


def _fits(clause: Clause, table: MovingTable) -> np.ndarray:
    """``[S, 3]``: which objects a clause may refer to."""
    fit = fitting(clause.phrase, table.scenes)
    if clause.verb is not None:
        fit = fit & (table.verb == VERBS.index(clause.verb))
    if clause.to is not None:
        fit = fit & (table.to == TARGETS.index(clause.to))
    return fit
