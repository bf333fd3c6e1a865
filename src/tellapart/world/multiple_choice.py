"""Multiple-choice questions about scenes, and a reader that answers them by the world's grammar."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tellapart.data.questions import MultipleChoice
from tellapart.draws import mix_seeds
from tellapart.rewards.question_answering import Asked
from tellapart.world import spec
from tellapart.world.grammar import article, parse
from tellapart.world.scenes import VALUES, Scene, SceneObject
from tellapart.world.truth import SceneTable, is_true, true_of

OPTIONS = 4
GALLERY = 2000
"""Scenes among which the exact reader looks for those that a caption allows."""


def questions_about(scenes: Mapping[str, Scene], *, seed: int = 0) -> dict[str, list[MultipleChoice]]:
    """Questions about shape, colour and place of an object that can be named without doubt, and about the background.

    Every option is a caption of the world's grammar; the first is true of the scene and the others are checked to be false.

    Args:
        scenes: image id -> scene.
        seed: of the objects and the false options.

    Example:
        >>> questions_about(load_scenes("val"))["val-0"][0].options
        ('a red circle', 'a blue circle', 'a white circle', 'a green circle')
    """
    return {
        image: list(_questions(scene, random.Random(mix_seeds("world questions", seed, image))))
        for image, scene in scenes.items()
    }


def _questions(scene: Scene, rng: random.Random) -> Iterator[MultipleChoice]:
    for ask in (_colour, _shape, _place, _background):
        asked = ask(scene, rng)
        if asked is not None:
            question, (true, *false) = asked
            if _holds(true, scene) and not any(_holds(text, scene) for text in false):
                yield MultipleChoice(question, (true, *false), 0)


def _holds(text: str, scene: Scene) -> bool:
    said = parse(text)
    return said is not None and is_true(said, scene)


def _alone(scene: Scene, name: str, rng: random.Random) -> SceneObject | None:
    """An object that no other shares the attribute ``name`` with."""
    counts = Counter(getattr(thing, name) for thing in scene.objects)
    found = [thing for thing in scene.objects if counts[getattr(thing, name)] == 1]
    return rng.choice(found) if found else None


def _others(values: Sequence[str], own: str, rng: random.Random) -> list[str]:
    return [own, *rng.sample([value for value in values if value != own], OPTIONS - 1)]


def _a(words: str) -> str:
    return f"{article(words)} {words}"


_Drawn = tuple[str, list[str]] | None


def _colour(scene: Scene, rng: random.Random) -> _Drawn:
    thing = _alone(scene, "shape", rng)
    if thing is None:
        return None
    options = [_a(f"{colour} {thing.shape}") for colour in _others(VALUES["colour"], thing.colour, rng)]
    return f"What colour is the {thing.shape}?", options


def _shape(scene: Scene, rng: random.Random) -> _Drawn:
    thing = _alone(scene, "colour", rng)
    if thing is None:
        return None
    options = [_a(f"{thing.colour} {shape}") for shape in _others(VALUES["shape"], thing.shape, rng)]
    return f"Which shape is {thing.colour}?", options


def _place(scene: Scene, rng: random.Random) -> _Drawn:
    thing = _alone(scene, "shape", rng)
    if thing is None:
        return None
    cells = [thing.cell, *(cell for cell in (divmod(number, 2) for number in range(4)) if cell != thing.cell)]
    options = [f"{_a(thing.shape)} in the {spec.ROWS[row]} {spec.COLUMNS[column]}" for row, column in cells]
    return f"Where is the {thing.shape}?", options


def _background(scene: Scene, rng: random.Random) -> _Drawn:
    values = _others(tuple(spec.BACKGROUNDS), scene.background, rng)
    return "What is the background?", [f"a shape on {_a(value)} background" for value in values]


class ExactReader:
    """Answers by the world's grammar, exactly: the probability of an option is its share of the scenes that the caption allows.

    Of a gallery of scenes, those count of which the caption is true; a caption that cannot be read allows all. An option's
    probability is the number of these of which the option is true, over the sum of these numbers. No language model reads the
    world better, so a score by this reader is the most that the captions tell.

    Args:
        scenes: the gallery.

    Example:
        >>> ExactReader(load_scenes("train")).identity()
        "the world's grammar over 2,000 scenes"
    """

    def __init__(self, scenes: Mapping[str, Scene], *, gallery: int = GALLERY) -> None:
        self.truncated = 0.0
        self._table = SceneTable.of(list(scenes.values())[:gallery])
        self._known: dict[str, np.ndarray] = {}

    def identity(self) -> str:
        """In words."""
        return f"the world's grammar over {len(self._table):,} scenes"

    def answer(self, asked: Sequence[Asked]) -> list[list[float]]:
        """Log-probabilities that sum to 1, equal ones where the caption allows none of the options."""
        self._known = {}  # a caption's scenes are looked up once per call
        return [self._options(one) for one in asked]

    def _options(self, one: Asked) -> list[float]:
        allowed = self._scenes_of(one.caption)
        allowed = np.ones(len(self._table), dtype=bool) if allowed is None else allowed
        counts = []
        for option in one.question.options:
            true = self._scenes_of(option)
            counts.append(0 if true is None else int(np.count_nonzero(allowed & true)))
        total = sum(counts)
        if not total:
            return [-math.log(len(counts))] * len(counts)
        return [math.log(count / total) if count else -math.inf for count in counts]

    def _scenes_of(self, text: str) -> np.ndarray | None:
        if text not in self._known:
            said = parse(text)
            if said is None:
                return None
            self._known[text] = true_of(said, self._table)
        return self._known[text]
