"""Sentences of NLVR that the scenes decide: read conservatively, and written at random to teach listeners.

A sentence is read only where all of its words are understood: "there is" or "there are", how many, and of what, in boxes or
towers. A bare number is read as both *exactly* and *at least*: where the two differ, there is no answer.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from nlvr_pictures import RGB, SHAPES, Scene, Thing

Answer = bool | None
"""Whether something is so; None where readings differ."""

NUMBERS = {word: i for i, word in enumerate(("no", "one", "two", "three", "four", "five", "six", "seven"))}
NUMBERS |= {str(i): i for i in range(1, 8)}
COLOUR = "yellow|black|blue"
WHAT = r"circles?|squares?|triangles?|items?|objects?|blocks?"
MANY = rf"an?|(?:(?:exactly|only|at least|atleast|at most|atmost) )?(?:{'|'.join(NUMBERS)})"
WALLS = {"edge": None, "wall": None, "base": "base", "bottom": "base", "top": "top"}
TOUCHING = (
    rf"(?: (?:closely )?touching (?:the |any |a |an )?(?P<wall>{'|'.join(WALLS)})(?: of (?:a|the|any) (?:grey )?box)?)"
)
THINGS = re.compile(rf"(?:(?P<many>{MANY}) )?(?:(?P<colour>{COLOUR}) )?(?P<what>{WHAT}){TOUCHING}?")
STATED = re.compile(r"there (?:is|are) (?P<things>.+)")
HOLDERS = re.compile(
    rf"there (?:is|are) (?P<many>{MANY}) (?:grey )?(?P<where>box|boxes|tower|towers) "
    r"(?:with|that has|which has|that have|which have|having|containing|that contains|which contains) (?P<what>.+)"
)
PLACE = "(?P<end>base|top|bottom)"
END = re.compile(
    rf"(?:an?|the|one|1)? ?(?P<colour>{COLOUR}) (?:color |colour |colored )?blocks? (?:at|on|in|as) (?:the |its )?{PLACE}"
)
END_OF = re.compile(
    rf"there (?:is|are) (?P<many>{MANY}) (?P<colour>{COLOUR}) blocks? (?:as|at|on) the {PLACE} of (?:a|the) tower"
)


@dataclass(frozen=True)
class Many:
    """How many.

    Args:
        least: smallest number that is meant.
        most: largest one; None is any.
        loose: a bare number, which may also mean "at least".
    """

    least: int
    most: int | None
    loose: bool = False

    def answer(self, low: int, high: int) -> Answer:
        """Whether a number between ``low`` and ``high`` is meant."""
        found = {self._one(count) for count in range(low, high + 1)}
        return found.pop() if len(found) == 1 else None

    def _one(self, count: int) -> Answer:
        if self.loose and count > self.least:
            return None
        return self.least <= count and (self.most is None or count <= self.most)


def read_many(text: str | None, *, plural: bool = False) -> Many:
    """What "at least two" means; without a word some, of a plural at least two or one."""
    if text is None:
        return Many(1, None)
    word = text.split()[-1]
    if word in ("a", "an"):
        return Many(1, None)
    number, how = NUMBERS[word], text.removesuffix(word).replace(" ", "")
    if how in ("exactly", "only") or number == 0:
        return Many(number, number)
    if how == "atleast":
        return Many(number, None)
    if how == "atmost":
        return Many(0, number)
    return Many(number, number, loose=True)


Reading = Callable[[Scene], Answer]
"""What a sentence says of a scene."""

OfBox = Callable[[Sequence[Thing]], Answer]


def read(sentence: str) -> Reading | None:
    """What a sentence says; None where it is not understood for certain.

    Args:
        sentence: in lower case without punctuation.
    """
    if found := END_OF.fullmatch(sentence):
        return _holders(read_many(found["many"]), _end(found["colour"], found["end"]), towers=True)
    if found := HOLDERS.fullmatch(sentence):
        inside = _inside(found["what"], towers=found["where"].startswith("tower"))
        return inside and _holders(read_many(found["many"]), inside, towers=found["where"].startswith("tower"))
    if (found := STATED.fullmatch(sentence)) and (things := THINGS.fullmatch(found["things"])) and things["many"]:
        of = _things(things)
        return lambda scene: of([thing for box in scene for thing in box])
    return None


def _inside(text: str, *, towers: bool) -> OfBox | None:
    if towers and (found := END.fullmatch(text)):
        return _end(found["colour"], found["end"])
    parts = [THINGS.fullmatch(part) for part in re.split(r" and ", text)]
    if any(part is None or not part["many"] for part in parts) or (towers and len(parts) > 1):
        return None
    all_of = [_things(part) for part in parts if part is not None]
    return lambda box: _both([of(box) for of in all_of])


def _both(answers: Sequence[Answer]) -> Answer:
    if False in answers:
        return False
    return None if None in answers else True


def _things(found: re.Match[str]) -> OfBox:
    many, colour, wall = read_many(found["many"]), found["colour"], found["wall"]
    shape = {"circle": "circle", "square": "square", "triangle": "triangle", "block": "square"}.get(
        found["what"].removesuffix("s")
    )

    def answer(things: Sequence[Thing]) -> Answer:
        meant = [
            thing
            for thing in things
            if (colour is None or thing.colour == colour)
            and (shape is None or thing.shape == shape)
            and (wall is None or _at(thing, WALLS[wall]))
        ]
        return many.answer(len(meant), len(meant))

    return answer


def _at(thing: Thing, wall: str | None) -> bool:
    return bool(thing.touches) if wall is None else wall in thing.touches


def _end(colour: str, end: str) -> OfBox:
    def answer(box: Sequence[Thing]) -> Answer:
        if not box:
            return False
        return (min if end == "top" else max)(box, key=lambda thing: thing.y).colour == colour

    return answer


def _holders(many: Many, inside: OfBox, *, towers: bool) -> Reading:
    def answer(scene: Scene) -> Answer:
        if towers and not is_towers(scene):
            return False
        answers = [inside(box) for box in scene]
        sure = sum(one is True for one in answers)
        return many.answer(sure, sure + sum(one is None for one in answers))

    return answer


def is_towers(scene: Scene) -> bool:
    """Whether the boxes hold towers: squares of one size, one above another."""
    things = [thing for box in scene for thing in box]
    return bool(things) and all(thing.shape == "square" and thing.size == 20 and thing.x == 40 for thing in things)


NOT_MONOTONE = ("exactly", "only", "most", "atmost", "no")


def first_wrong(sentence: str, scene: Scene) -> int | None:
    """Where a sentence of :func:`statements` goes wrong: the first colour or noun after which no rest could make it true; else
    its last word, which decides it. None where it is true.

    More words about a thing leave fewer things, so "a yellow" is wrong where nothing is yellow, whatever follows. That does not
    hold after "exactly" and the like.

    Args:
        sentence: one that :func:`read` understands.
        scene: that decides it.
    """
    words, whole = sentence.split(), read(sentence)
    assert whole is not None, sentence
    if whole(scene) is not False:
        return None
    for place, word in enumerate(words):
        if word in NOT_MONOTONE:
            break
        begun = " ".join(words[: place + 1])
        reading = read(f"{begun} items" if word in RGB else begun)
        if reading is not None and reading(scene) is False:
            return place
    return len(words) - 1


# Sentences at random.

MANY_WORDS = ("a", "one", "1", "two", "2", "three", "3", "four", "4")
HOW = ("", "exactly ", "only ", "at least ")


def statements(scene: Scene, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Sentences without end that are decided by a scene, each with whether it is true, as often true as false."""
    wanted = True
    for _ in range(10_000):
        sentence = _towers(rng) if is_towers(scene) else _boxes(rng)
        reading = read(sentence)
        assert reading is not None, sentence
        if reading(scene) is wanted:
            yield sentence, wanted
            wanted = not wanted


def _many(rng: random.Random, numbers: Sequence[str] = MANY_WORDS) -> str:
    word = rng.choice(numbers)
    return word if word == "a" else rng.choice(HOW) + word


def _one(many: str) -> bool:
    return many.split()[-1] in ("a", "one", "1")


def _noun(rng: random.Random, many: str, *, block: bool = False) -> str:
    noun = "block" if block else rng.choice(("circle", "square", "triangle", "item", "object"))
    colour = rng.choice(("yellow ", "black ", "blue ", ""))
    return f"{many} {colour}{noun}{'' if _one(many) else 's'}"


def _boxes(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        return f"there is {rng.choice(('a', 'a', 'a', 'no'))} {_plain(rng)}"
    if kind < 0.5:
        return f"there is a box with {' and '.join(f'a {_plain(rng)}' for _ in range(rng.choice((1, 2))))}"
    many = _many(rng)
    if kind < 0.75:
        walls = (
            "",
            "touching the edge",
            "touching the base",
            "closely touching the bottom of a box",
            "touching the wall",
        )
        return f"there {'is' if _one(many) else 'are'} {_noun(rng, many)} {rng.choice(walls)}".strip()
    some = _many(rng, ("a", "a", "a", "one", "1", "two", "2"))
    inside = " and ".join(_noun(rng, _many(rng)) for _ in range(rng.choice((1, 1, 2))))
    verb = "is" if _one(some) else "are"
    return f"there {verb} {some} box{'' if _one(some) else 'es'} with {inside}"


def _plain(rng: random.Random) -> str:
    """Sentences that need no counting come first in learning: half of all are of this kind."""
    return rng.choice(("yellow ", "black ", "blue ", "")) + rng.choice(SHAPES)


def descriptions(scene: Scene, rng: random.Random, count: int) -> list[str]:
    """True sentences of detail: all that is in some box, or some statements about towers."""
    if is_towers(scene):
        true = (text for text, so in statements(scene, rng) if so)
        return list(islice(true, count))
    full = [box for box in scene if box]
    return [_description(rng.choice(full), rng) for _ in range(count)] if full else ["there is no item"]


def _description(box: Sequence[Thing], rng: random.Random) -> str:
    counts = Counter((thing.colour, thing.shape) for thing in box)
    kinds = list(counts)
    rng.shuffle(kinds)
    words = ("", "a", "two", "three", "four", "five", "six", "seven")
    parts = [f"{words[min(counts[kind], 7)]} {' '.join(kind)}{'s' if counts[kind] > 1 else ''}" for kind in kinds]
    return f"there is a box with {' and '.join(parts[:4])}"


def _towers(rng: random.Random) -> str:
    some = _many(rng, ("a", "a", "one", "1", "two", "2"))
    head = f"there {'is' if _one(some) else 'are'} {some} tower{'' if _one(some) else 's'}"
    kind = rng.random()
    if kind < 0.5:
        return f"{head} with {_noun(rng, _many(rng), block=True)}"
    colour, end = rng.choice(("yellow", "black", "blue")), rng.choice(("base", "top"))
    if kind < 0.75:
        return f"{head} with a {colour} block at the {end}"
    return f"there is {rng.choice(('a', 'one', 'at least one', 'only one'))} {colour} block as the {end} of a tower"
