"""What only a world whose truth is known can measure of captions of clips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from tellapart.errors import UsageError
from tellapart.world.grammar import NounPhrase
from tellapart.world.measures import ATTRIBUTE_WORDS, RECALL_AT, WorldMeasures, exact_recall, scene_attributes
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
    if captions.keys() != scenes.keys():
        odd = next(iter(captions.keys() ^ scenes.keys()))
        raise UsageError(f"captions and scenes differ, first in clip {odd!r}: give one caption per scene.")
    texts, ordered = list(captions.values()), [scenes[clip_id] for clip_id in captions]
    parsed = {text: parse(text) for text in dict.fromkeys(texts)}
    table = MovingTable.of(ordered)
    truth = {text: true_of(said, table) for text, said in parsed.items() if said is not None}
    nothing = np.zeros(len(table), dtype=bool)
    matrix = np.stack([truth.get(text, nothing) for text in texts])
    grammatical = np.array([parsed[text] is not None for text in texts])
    pairs = [(parsed[text], moving) for text, moving in zip(texts, ordered, strict=True)]
    values = {
        "grammatical": 100.0 * grammatical,
        "motion": np.array([100.0 * (said is not None and is_true(only_motion(said), one)) for said, one in pairs]),
        "order": np.array([100.0 * (said is not None and is_true(only_order(said), one)) for said, one in pairs]),
        "truthful": 100.0 * (matrix.diagonal() & grammatical),
        "hallucinated": np.array([_hallucinated(text, one) for text, one in zip(texts, ordered, strict=True)]),
        "detail": np.array([_detail(text, parsed[text], one) for text, one in zip(texts, ordered, strict=True)]),
    }
    values |= {f"exact_recall@{k}": column for k, column in exact_recall(matrix, grammatical, RECALL_AT).items()}
    corpus = {name: float(np.mean(column)) for name, column in values.items()}
    return WorldMeasures(corpus, {name: [float(v) for v in column] for name, column in values.items()})


def measure_against(
    scenes: Mapping[str, MovingScene],
) -> Callable[[Mapping[str, str]], tuple[dict[str, float], dict[str, list[float]]]]:
    """``moving_measures`` against these scenes, as an evaluation takes it: captions -> (corpus, per image)."""

    def measure(captions: Mapping[str, str]) -> tuple[dict[str, float], dict[str, list[float]]]:
        measured = moving_measures(captions, scenes)
        return measured.corpus, measured.per_image

    return measure


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
