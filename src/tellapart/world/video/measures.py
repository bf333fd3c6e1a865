"""What only a world whose truth is known can measure of captions of clips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tellapart.world.grammar import NounPhrase
from tellapart.world.measures import ATTRIBUTE_WORDS, WorldMeasures, compare, scene_attributes
from tellapart.world.scenes import VALUES
from tellapart.world.video import spec
from tellapart.world.video.grammar import AND, VERB_WORDS, MovingDescription, parse
from tellapart.world.video.scenes import MovingScene
from tellapart.world.video.truth import MovingTable, is_true, true_of


def moving_measures(captions: Mapping[str, str], scenes: Mapping[str, MovingScene]) -> WorldMeasures:
    """Measure one caption per clip, all in percent.

    - ``grammatical``: the caption parses.
    - ``motion``: it parses, and what it says to happen does happen: verbs, directions and colours turned to, whatever objects
      it names and in whatever order.
    - ``order``: as ``motion``, and the orders that it states hold; a caption that states none counts as ``motion`` does.
    - ``truthful``: everything it says is true: objects, places, background, motion and order.
    - ``hallucinated``: share of its attribute words that are true of no object at any time, nor of the background.
    - ``detail``: share of what there is to say that it mentions, counting repeats: shape, colour, size and texture (unless
      plain) of each object, the background, and verb and direction (or colour) of each event.
    - ``exact_recall@k``: as for still pictures (``exact_recall``); the gallery is ``scenes``.

    Args:
        captions: clip id -> caption; the ids are those of ``scenes``.
        scenes: clip id -> moving scene.

    Raises:
        UsageError: captions are of other clips than the scenes.

    Example:
        >>> moving_measures({"a": "a star moves left"}, {"a": load_moving_scenes("val")["val-000000"]}).corpus["motion"]
    """
    read = compare(captions, scenes, parse, lambda ordered: partial(true_of, table=MovingTable.of(ordered)))
    return read.summed(
        {
            "grammatical": read.grammatical,
            "motion": [100.0 * (said is not None and is_true(only_motion(said), one)) for _, said, one in read.rows],
            "order": [100.0 * (said is not None and is_true(only_order(said), one)) for _, said, one in read.rows],
            "truthful": read.truthful,
            "hallucinated": [_hallucinated(text, one) for text, _, one in read.rows],
            "detail": [_detail(text, said, one) for text, said, one in read.rows],
        }
    )


def only_order(said: MovingDescription) -> MovingDescription:
    """What a caption says to happen, and in which order, to objects of any kind."""
    clauses = tuple(replace(clause, phrase=NounPhrase()) for clause in said.clauses)
    return MovingDescription(clauses, said.orders)


def only_motion(said: MovingDescription) -> MovingDescription:
    """What a caption says to happen, to objects of any kind and in any order."""
    return replace(only_order(said), orders=(AND,) * len(said.orders))


def moving_attributes(moving: MovingScene) -> Counter[str]:
    """What there is to say of a clip, each as often as it occurs."""
    events = Counter(word for event in moving.events for word in (event.verb, event.to) if word)
    return scene_attributes(moving.scene) + events


_WORDS = {**ATTRIBUTE_WORDS, **VERB_WORDS}
_SAID = {**_WORDS, **{direction: direction for direction in spec.DIRECTIONS}}


def _hallucinated(text: str, moving: MovingScene) -> float:
    words = text.rstrip(" .").replace(",", " ").split()
    mentioned = [ATTRIBUTE_WORDS[word] for word in words if word in ATTRIBUTE_WORDS]
    there = {getattr(thing, name) for thing in moving.scene.objects for name in VALUES} | {moving.scene.background}
    there |= {event.to for event in moving.events}
    return 100.0 * sum(value not in there for value in mentioned) / len(mentioned) if mentioned else 0.0


def _mentions(text: str, said: MovingDescription | None) -> Counter[str]:
    if said is None:
        words = text.rstrip(" .").replace(",", " ").split()
        return Counter(_SAID[word] for word in words if word in _SAID)
    counted = Counter([said.background] if said.background is not None else [])
    for clause in said.clauses:
        counted.update(value for name in VALUES if (value := getattr(clause.phrase, name)) is not None)
        counted.update(word for word in (clause.verb, clause.to) if word is not None)
    return counted


def _detail(text: str, said: MovingDescription | None, moving: MovingScene) -> float:
    there = moving_attributes(moving)
    return 100.0 * (there & _mentions(text, said)).total() / there.total()
