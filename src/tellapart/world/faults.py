"""Faults of a captioner of the world: false places, objects named twice, broken language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tellapart.world.grammar import Description, NounPhrase, parse
from tellapart.world.scenes import Scene
from tellapart.world.truth import is_true


def without_places(said: Description) -> Description:
    """The same without cells, and with every relation turned into "and"."""
    phrases = tuple(replace(phrase, place=None) for phrase in said.phrases)
    return Description(phrases, ("and",) * len(said.relations), said.background)


def says_places(said: Description) -> bool:
    """Whether it names a cell or a relation."""
    return without_places(said) != said


def says_twice(said: Description, scene: Scene) -> bool:
    """Whether more of its phrases can only refer to one and the same object than there are such objects.

    A phrase is said twice where phrases of its kind (whatever is left unsaid) outnumber the objects that they fit.
    """
    bare = [replace(phrase, place=None) for phrase in said.phrases]
    for phrase in bare:
        alike = sum(other.count for other in bare if _within(other, phrase))
        there = sum(
            is_true(Description((replace(phrase, count=1),)), _alone(scene, i)) for i in range(len(scene.objects))
        )
        if alike > there > 0:
            return True
    return False


def faults(captions: Mapping[str, str], scenes: Mapping[str, Scene]) -> dict[str, float]:
    """Percentages of one caption per image.

    Args:
        captions: image id -> caption.
        scenes: image id -> scene.

    Returns:
        ``place``: of the captions that name a cell or a relation and are true without it, those true with it (100 where
        there are none); ``cells``, ``relations``: the same of captions that name only cells, or only relations;
        ``said_places``: captions that name any; ``doubled``: captions that name one object twice;
        ``broken``: captions outside the language.

    Example:
        >>> faults({"val-000000": "a star"}, load_scenes("val"))["broken"]
        0.0
    """
    parsed = {name: parse(text) for name, text in captions.items()}
    said = {name: found for name, found in parsed.items() if found is not None}
    doubled = sum(says_twice(found, scenes[name]) for name, found in said.items())
    placed = {
        name: found
        for name, found in said.items()
        if says_places(found) and is_true(without_places(found), scenes[name])
    }
    right = {name: is_true(found, scenes[name]) for name, found in placed.items()}
    related = {name: set(found.relations) - {"and"} for name, found in placed.items()}
    only_cells = [right[name] for name in placed if not related[name]]
    only_relations = [
        right[name] for name in placed if related[name] and all(p.place is None for p in placed[name].phrases)
    ]
    return {
        "place": percent(list(right.values())),
        "cells": percent(only_cells),
        "relations": percent(only_relations),
        "said_places": 100.0 * sum(says_places(found) for found in said.values()) / len(captions),
        "doubled": 100.0 * doubled / len(captions),
        "broken": 100.0 * (len(captions) - len(said)) / len(captions),
    }


def percent(right: list[bool]) -> float:
    """The share of these that are right, 100 where there are none."""
    return 100.0 * sum(right) / len(right) if right else 100.0


def _within(one: NounPhrase, other: NounPhrase) -> bool:
    """Whether every object that ``one`` fits is fitted by ``other``."""
    pairs = ((getattr(other, name), getattr(one, name)) for name in ("shape", "colour", "size", "texture"))
    return all(asked in (None, given) for asked, given in pairs)


def _alone(scene: Scene, place: int) -> Scene:
    return replace(scene, objects=(scene.objects[place],))
