"""Questions to models of the world: several texts about a picture, of which one is true.

The texts are written from plain templates, by other code than the negatives that teach models
(``tellapart.world.negatives``, ``tellapart.world.sayings``), and each false one is checked to be false.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tellapart.data.images import ArrayImage
from tellapart.world import spec
from tellapart.world.captions import full_description
from tellapart.world.grammar import article, parse
from tellapart.world.render import Renderer
from tellapart.world.scenes import VALUES, Scene, SceneObject, pick, relations_between
from tellapart.world.truth import is_true

SEED = 71

ATTRIBUTES = ("shape", "colour", "size", "texture", "background")
"""Asked of new pictures of single objects, with a text for each value."""

OPPOSITES = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}


@dataclass(frozen=True)
class Question:
    """Texts about one picture; the first is true.

    Args:
        row: of the picture.
        texts: the true one and false ones.
    """

    row: int
    texts: tuple[str, ...]


Ask = Callable[[int, Scene, random.Random], Question | None]
"""Row, scene and random numbers -> a question, or none where the scene allows none."""


def single_objects(scenes: Sequence[Scene]) -> tuple[list[Scene], list[ArrayImage]]:
    """Each scene's first object alone on the scene's background, and new pictures of that."""
    single = [replace(scene, objects=scene.objects[:1]) for scene in scenes]
    return single, [ArrayImage(array) for array in Renderer((SEED,))(single)]


def attribute_questions(name: str, single: Sequence[Scene]) -> list[Question]:
    """What is asked of pictures of one object: a text for each value of the attribute ``name``, the true one first."""
    values = tuple(spec.BACKGROUNDS) if name == "background" else VALUES[name]
    questions = []
    for row, scene in enumerate(single):
        thing = scene.objects[0]
        present = scene.background if name == "background" else getattr(thing, name)
        ordered = (present, *(value for value in values if value != present))
        questions.append(Question(row, tuple(_attribute_text(name, thing, value) for value in ordered)))
    return questions


def _attribute_text(name: str, thing: SceneObject, value: str) -> str:
    if name == "shape":
        return _noun(value)
    if name == "background":
        return f"{_noun(thing.shape)} on {_noun(f'{value} background')}"
    return _noun(f"{value} {thing.shape}")


def picture_questions(scenes: Sequence[Scene]) -> dict[str, list[Question]]:
    """What is asked of whole pictures: name -> questions, see ``ASKED``."""
    rng = random.Random(SEED)
    found = {
        name: [question for row, scene in enumerate(scenes) if (question := ask(row, scene, rng))]
        for name, ask in ASKED.items()
    }
    return {name: questions for name, questions in found.items() if questions}


def _noun(words: str) -> str:
    return f"{article(words)} {words}"


def _thing(thing: SceneObject) -> str:
    return _noun(f"{thing.colour} {thing.shape}")


def _two(scene: Scene, rng: random.Random) -> tuple[SceneObject, SceneObject] | None:
    """Two objects that differ in shape and in colour."""
    pairs = [(a, b) for a in scene.objects for b in scene.objects if a.shape != b.shape and a.colour != b.colour]
    return pick(rng, pairs) if pairs else None


def _asked(row: int, scene: Scene, true: str, false: Sequence[str]) -> Question | None:
    """The question, if what should be true is and what should be false is."""
    if not _holds(true, scene) or any(_holds(text, scene) for text in false):
        return None
    return Question(row, (true, *false))


def _holds(text: str, scene: Scene) -> bool:
    said = parse(text)
    return said is not None and is_true(said, scene)


def _binding(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """Colours exchanged between two objects."""
    pair = _two(scene, rng)
    if pair is None:
        return None
    one, other = pair
    exchanged = f"{_noun(f'{other.colour} {one.shape}')} and {_noun(f'{one.colour} {other.shape}')}"
    return _asked(row, scene, f"{_thing(one)} and {_thing(other)}", [exchanged])


def _relation(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """A relation turned into its opposite."""
    pair = _two(scene, rng)
    if pair is None:
        return None
    one, other = pair
    relation = pick(rng, relations_between(one, other))
    texts = [f"{_thing(one)} {said} {_thing(other)}" for said in (relation, OPPOSITES[relation])]
    return _asked(row, scene, texts[0], texts[1:])


def _place(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """An object in each of the four cells."""
    thing = pick(rng, scene.objects)
    cells = [thing.cell, *(divmod(cell, 2) for cell in range(4) if divmod(cell, 2) != thing.cell)]
    texts = [f"{_thing(thing)} in the {spec.ROWS[r]} {spec.COLUMNS[c]}" for r, c in cells]
    return _asked(row, scene, texts[0], texts[1:])


def _veto(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """One object alone, against everything that is true of the scene with one word false."""
    words = full_description(scene).split()
    named = {value: values for values in (*VALUES.values(), tuple(spec.BACKGROUNDS)) for value in values}
    at = pick(rng, [i for i, word in enumerate(words) if word in named])
    words[at] = pick(rng, [value for value in named[words[at]] if value != words[at]])
    words = [
        article(after) if word in ("a", "an") else word for word, after in zip(words, [*words[1:], ""], strict=True)
    ]
    return _asked(row, scene, _thing(pick(rng, scene.objects)), [" ".join(words)])


def _doubled(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """An object said twice."""
    said = [_thing(thing) for thing in rng.sample(scene.objects, len(scene.objects))]
    join = pick(rng, ["and", "with"])
    return _asked(row, scene, f" {join} ".join(said), [f" {join} ".join([*said, pick(rng, said)])])


def _count(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """Two shapes or three."""
    numbers = {number: f"{word} shapes" for word, number in spec.NUMBERS.items()}
    true = numbers.pop(len(scene.objects), None)
    return None if true is None else _asked(row, scene, true, list(numbers.values()))


def _broken(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """A word repeated, or missing."""
    words = full_description(scene).split()
    at = rng.randrange(len(words))
    broken = words[:at] + words[at + 1 :] if rng.random() < 0.5 else words[: at + 1] + words[at:]
    return _asked(row, scene, " ".join(words), [" ".join(broken)])


def _order(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """The words of a full description shuffled."""
    full = full_description(scene)
    words = full.split()
    return Question(row, (full, " ".join(rng.sample(words, len(words)))))


def _sentence(row: int, scene: Scene, rng: random.Random) -> Question | None:
    """A full description, against its attribute words alone, which are just as true."""
    named = [getattr(thing, name) for thing in scene.objects for name in VALUES]
    words = [*named, scene.background, "background"]
    return Question(row, (full_description(scene), " ".join(rng.sample(words, len(words)))))


ASKED: dict[str, Ask] = {
    "binding": _binding,
    "relation": _relation,
    "place": _place,
    "veto": _veto,
    "doubled": _doubled,
    "count": _count,
    "broken": _broken,
    "order": _order,
    "sentence": _sentence,
}
"""Name -> what is asked of a whole picture. Chance is 25 for place and 50 for the others."""
