"""How often what a caption says of places and of order is right, where the rest of it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tellapart.world.faults import percent
from tellapart.world.video.grammar import AND, MovingDescription, parse
from tellapart.world.video.scenes import MovingScene
from tellapart.world.video.truth import is_true


def without_places(said: MovingDescription) -> MovingDescription:
    """The same without cells, and with every "then" turned into "and"."""
    clauses = tuple(replace(clause, phrase=replace(clause.phrase, place=None)) for clause in said.clauses)
    return MovingDescription(clauses, (AND,) * len(said.orders), said.background)


def moving_faults(captions: Mapping[str, str], scenes: Mapping[str, MovingScene]) -> dict[str, float]:
    """Percentages of one caption per clip.

    Args:
        captions: clip id -> caption.
        scenes: clip id -> moving scene.

    Returns:
        ``place``: of the captions that name a cell or an order and are true without it, those true with it (100 where there
        are none); ``said_places``: captions that name any.

    Example:
        >>> moving_faults({"val-000000": "a star moves left"}, load_moving_scenes("val"))["said_places"]
        0.0
    """
    read = ((name, parse(text)) for name, text in captions.items())
    placed = {name: said for name, said in read if said is not None and without_places(said) != said}
    right = [
        is_true(said, scenes[name]) for name, said in placed.items() if is_true(without_places(said), scenes[name])
    ]
    return {
        "place": percent(right),
        "said_places": 100.0 * len(placed) / len(captions),
    }
