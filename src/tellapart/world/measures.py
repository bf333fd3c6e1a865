"""Measures that need a world with known truth: grammar, truth, hallucination, detail and exact retrieval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from tellapart.errors import UsageError
from tellapart.world.grammar import (
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    PLURAL_WORDS,
    SHAPE_WORDS,
    SIZE_WORDS,
    TEXTURE_WORDS,
    Description,
    parse,
)
from tellapart.world.scenes import VALUES, Scene
from tellapart.world.truth import SceneTable, true_of

RECALL_AT = (1, 5, 10)

Said = TypeVar("Said")
Seen = TypeVar("Seen")

ATTRIBUTE_WORDS = {**SHAPE_WORDS, **PLURAL_WORDS, **COLOUR_WORDS, **SIZE_WORDS, **TEXTURE_WORDS, **BACKGROUND_WORDS}
"""Every word that names an attribute -> the attribute's value (no two attributes share a value)."""


@dataclass(frozen=True)
class WorldMeasures:
    """Percentages over all captions, and one value per caption.

    Args:
        corpus: name -> mean.
        per_image: name -> values in the order of the captions; each averages to ``corpus[name]``.
    """

    corpus: dict[str, float]
    per_image: dict[str, list[float]]


def world_measures(captions: Mapping[str, str], scenes: Mapping[str, Scene]) -> WorldMeasures:
    """Measure one caption per scene, all in percent.

    - ``grammatical``: the caption parses.
    - ``truthful``: it parses, and binding, places, background, counts and relations are all true of its scene.
    - ``hallucinated``: share of its attribute words (shape, colour, size, texture, background) that are true of no object of
      the scene nor of its background; word by word, so ungrammatical captions are measured too; 0 where none is mentioned.
    - ``detail``: share of the scene's attributes that it mentions, counting repeats (two red things need "red" twice, or a
      count); the scene's attributes are shape, colour and size of each object, its texture unless plain, and the background.
    - ``exact_recall@k``: see ``exact_recall``; the gallery is ``scenes``.

    Args:
        captions: image id -> caption; the ids are those of ``scenes``.
        scenes: image id -> scene.

    Raises:
        UsageError: captions are of other images than the scenes.
    """
    read = compare(captions, scenes, parse, lambda ordered: partial(true_of, table=SceneTable.of(ordered)))
    return read.summed(
        {
            "grammatical": read.grammatical,
            "truthful": read.truthful,
            "hallucinated": [_hallucinated(text, scene) for text, _, scene in read.rows],
            "detail": [_detail(text, said, scene) for text, said, scene in read.rows],
        }
    )


@dataclass(frozen=True)
class Compared(Generic[Said, Seen]):
    """Captions that were read, and what they are true of.

    Args:
        rows: per caption its text, what it says (None if it does not parse) and its own scene.
        truth: ``[N, N]`` bool, whether caption i is true of the scene of caption j.
    """

    rows: list[tuple[str, Said | None, Seen]]
    truth: np.ndarray

    @property
    def parses(self) -> np.ndarray:
        """``[N]`` bool."""
        return np.array([said is not None for _, said, _ in self.rows])

    @property
    def grammatical(self) -> np.ndarray:
        """``[N]`` percent."""
        return 100.0 * self.parses

    @property
    def truthful(self) -> np.ndarray:
        """``[N]`` percent."""
        return 100.0 * (self.truth.diagonal() & self.parses)

    def summed(self, values: Mapping[str, Sequence[float] | np.ndarray]) -> WorldMeasures:
        """These values per caption, and exact recall, with their means."""
        recalls = exact_recall(self.truth, self.parses, RECALL_AT)
        columns = {**values, **{f"exact_recall@{k}": column for k, column in recalls.items()}}
        per_image = {name: [float(value) for value in column] for name, column in columns.items()}
        return WorldMeasures({name: float(np.mean(column)) for name, column in columns.items()}, per_image)


def compare(
    captions: Mapping[str, str],
    scenes: Mapping[str, Seen],
    parse: Callable[[str], Said | None],
    truth_among: Callable[[Sequence[Seen]], Callable[[Said], np.ndarray]],
) -> Compared[Said, Seen]:
    """Read every caption and compare it with every scene.

    Args:
        captions: id -> caption; the ids are those of ``scenes``.
        scenes: id -> scene.
        parse: text -> what it says; None if it is not of the language.
        truth_among: scenes in order -> (what a caption says -> ``[N]`` bool, the scenes that it is true of).

    Raises:
        UsageError: captions are of other images than the scenes.
    """
    if captions.keys() != scenes.keys():
        odd = next(iter(captions.keys() ^ scenes.keys()))
        raise UsageError(f"captions and scenes differ, first in {odd!r}: give one caption per scene.")
    ordered = [scenes[name] for name in captions]
    parsed = {text: parse(text) for text in dict.fromkeys(captions.values())}
    true_of = truth_among(ordered)
    truth = {text: true_of(said) for text, said in parsed.items() if said is not None}
    nothing = np.zeros(len(ordered), dtype=bool)
    rows = [(text, parsed[text], scene) for text, scene in zip(captions.values(), ordered, strict=True)]
    return Compared(rows, np.stack([truth.get(text, nothing) for text in captions.values()]))


def measure_against(
    scenes: Mapping[str, Seen],
    measures: Callable[[Mapping[str, str], Mapping[str, Seen]], WorldMeasures],
) -> Callable[[Mapping[str, str]], tuple[dict[str, float], dict[str, list[float]]]]:
    """Measures against these scenes, as an evaluation takes them: captions -> (corpus, per image)."""

    def measure(captions: Mapping[str, str]) -> tuple[dict[str, float], dict[str, list[float]]]:
        measured = measures(captions, scenes)
        return measured.corpus, measured.per_image

    return measure


def exact_recall(truth: np.ndarray, parses: np.ndarray, ks: Sequence[int]) -> dict[int, np.ndarray]:
    """Percent probability, per caption, that a reader who knows only the truth finds the caption's scene within k.

    A caption that parses and is true of its own scene, and of m scenes in all, retrieves its own with probability
    ``min(1, k / m)``; any other retrieves nothing. This measures information, not style, and length is free in it.

    Args:
        truth: ``[N, N]`` bool, whether caption i is true of scene j.
        parses: ``[N]`` bool.
        ks: ranks.

    Returns:
        k -> ``[N]`` values from 0 to 100.
    """
    truth = np.asarray(truth, dtype=bool)
    right = np.asarray(parses, dtype=bool) & truth.diagonal()
    matches = np.where(right, truth.sum(axis=1), 1)
    return {k: 100.0 * right * np.minimum(1.0, k / matches) for k in ks}


def scene_attributes(scene: Scene) -> Counter[str]:
    """What there is to say of a scene, each attribute as often as it occurs; being plain is nothing to say."""
    said = Counter(getattr(thing, name) for thing in scene.objects for name in VALUES)
    del said["plain"]
    return said + Counter([scene.background])


def _words(text: str) -> list[str]:
    """The values of the attribute words of any text, one a mention."""
    return [ATTRIBUTE_WORDS[word] for word in text.rstrip(" .").split() if word in ATTRIBUTE_WORDS]


def _mentions(text: str, said: Description | None) -> Counter[str]:
    """How often each attribute is mentioned; "two red stars" mentions two reds and two stars."""
    if said is None:
        return Counter(_words(text))
    counted: Counter[str] = Counter()
    for phrase in said.phrases:
        for name in VALUES:
            if getattr(phrase, name) is not None:
                counted[getattr(phrase, name)] += phrase.count
    if said.background is not None:
        counted[said.background] += 1
    return counted


def _hallucinated(text: str, scene: Scene) -> float:
    mentioned = _words(text)
    there = {getattr(thing, name) for thing in scene.objects for name in VALUES} | {scene.background}
    return 100.0 * sum(value not in there for value in mentioned) / len(mentioned) if mentioned else 0.0


def _detail(text: str, said: Description | None, scene: Scene) -> float:
    there = scene_attributes(scene)
    return 100.0 * (there & _mentions(text, said)).total() / there.total()
