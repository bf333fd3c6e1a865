"""What several captions of one scene say together: what a summary of them should say."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tellapart.draws import mix_seeds
from tellapart.world.captions import describe, write_as_annotator
from tellapart.world.grammar import Description, NounPhrase, write
from tellapart.world.negatives import replace_attribute, swap_relation
from tellapart.world.scenes import VALUES, Scene
from tellapart.world.truth import SceneTable, fitting

MISTAKEN = 0.15
"""Share of captions with something wrong: about that of what the world's captioners sample."""

FEWEST, MOST = 2, 10
"""Captions per image."""


def draw_captions(scene: Scene, rng: random.Random) -> tuple[list[str], str]:
    """What several people write of a scene, some of them mistaken, and the summary of those who are not.

    A mistaken caption has one attribute or one word of place changed; it may be true by chance.
    """
    said = [describe(scene, rng) for _ in range(rng.randint(FEWEST, MOST))]
    wrong = [rng.random() < MISTAKEN for _ in said]
    texts = [write_as_annotator(each, rng) for each in said]
    written = [_mistaken(text, rng) if bad else text for text, bad in zip(texts, wrong, strict=True)]
    right = [each for each, bad in zip(said, wrong, strict=True) if not bad]
    return written, write(merged(right or said, scene))


def merged(said: Sequence[Description], scene: Scene) -> Description:
    """All that true descriptions say of the objects of their scene, each object once, as far as it can be told of which one.

    A phrase that fits one object, or as many as it counts, tells of these. One that could be said of several tells of those
    that other phrases single out, or else of the first of them. Without any object the summary says how many there are. An
    object of which nothing is known but that it is there is left out, and so is a relation between two objects whose cells are
    known.

    Args:
        said: descriptions that are true of ``scene``.
        scene: what is there.
    """
    table = SceneTable.of([scene])
    phrases = [(phrase, _fits(phrase, table)) for each in said for phrase in each.phrases if _tells(phrase)]
    clear = [(phrase, fits) for phrase, fits in phrases if len(fits) == phrase.count]
    known: dict[int, NounPhrase] = {}
    for phrase, fits in clear:
        for thing in fits:
            known[thing] = _and(known.get(thing, NounPhrase()), phrase)
    for phrase, fits in phrases:
        if len(fits) != phrase.count:
            for thing in [each for each in fits if each in known] or fits[: phrase.count]:
                known[thing] = _and(known.get(thing, NounPhrase()), phrase)
    background = next((each.background for each in said if each.background is not None), None)
    if not known:
        return Description((NounPhrase(len(scene.objects)),), (), background)
    listed, between = sorted(known), dict(_relations(said, table))
    relations = tuple(
        "and" if known[first].place and known[second].place else between.get((first, second), "and")
        for first, second in pairwise(listed)
    )
    return Description(tuple(known[thing] for thing in listed), relations, background)


def summaries(scenes: Sequence[tuple[str, Scene]], seed: int) -> list[tuple[list[str], str]]:
    """For each image captions and their summary, which follow from its id and the seed."""
    return [draw_captions(scene, random.Random(mix_seeds(seed, "merge", name))) for name, scene in scenes]


def _tells(phrase: NounPhrase) -> bool:
    """Whether it says more of its objects than how many they are."""
    return replace(phrase, count=1) != NounPhrase()


def _fits(phrase: NounPhrase, table: SceneTable) -> list[int]:
    return np.flatnonzero(fitting(phrase, table)[0]).tolist()


def _and(one: NounPhrase, other: NounPhrase) -> NounPhrase:
    """What both say of one object."""
    told = {name: getattr(other, name) for name in (*VALUES, "place") if getattr(other, name) is not None}
    return replace(one, **told)


def _relations(said: Sequence[Description], table: SceneTable) -> Iterable[tuple[tuple[int, int], str]]:
    """Pairs of objects in reading order with the relation of the first to the second, where single objects are meant."""
    opposites = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
    for each in said:
        fits = [_fits(phrase, table) for phrase in each.phrases]
        for first, second, relation in zip(fits, fits[1:], each.relations, strict=False):
            if relation in opposites and len(first) == len(second) == 1:
                pair = (first[0], second[0])
                yield (pair, relation) if pair[0] < pair[1] else (pair[::-1], opposites[relation])


def _mistaken(text: str, rng: random.Random) -> str:
    draws = np.random.default_rng(rng.randrange(2**32))
    makers = [replace_attribute, swap_relation] if rng.random() < 0.7 else [swap_relation, replace_attribute]
    return next((wrong for make in makers if (wrong := make(text, draws)) is not None), text)
