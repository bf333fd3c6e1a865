"""The second reader of captions, held against the first: grammar and truth, and where a caption goes wrong."""

import random

import pytest

from tellapart.world import WORDS, load_scenes
from tellapart.world.captions import full_description, references
from tellapart.world.grammar import parse
from tellapart.world.prefixes import first_wrong, read
from tellapart.world.scenes import Scene, SceneObject
from tellapart.world.truth import is_true

# A red star top left, a blue ring bottom right.
SCENE = Scene(
    (SceneObject("star", "red", "small", "plain", 0, 0), SceneObject("ring", "blue", "large", "striped", 1, 1)), "pink"
)


@pytest.mark.parametrize(
    ("caption", "place"),
    [
        ("a red star", None),
        ("a red ring", 2),
        ("a green star", 1),
        ("an image of a star", None),
        ("an image of", 3),
        ("a picture a star", 2),
        ("we see two shapes", None),
        ("we see three shapes", 2),
        ("two red shapes", 1),  # only one is red, but there are two objects
        ("two stars", 1),
        ("a star and", 3),
        ("a star above a ring", None),
        ("a star below a ring", 2),  # nothing is above the star
        ("a ring below a red ring", 5),
        ("a star left of a ring on a pink background", None),
        ("a star on a black background", 4),
        ("a star on an pink background", 4),
        ("a star on a pink", 5),
        ("a star in the top left", None),
        ("a star in the top right", 5),
        ("a star in the bottom", 4),
        ("a star and a red star", 4),  # the other object is blue
        ("a star and a shape and a shape", 5),  # there is no third object
        ("a star with a star", 4),
        ("a orange star", 1),
        ("an red star", 1),
        ("a red red star", 2),
        ("a star star", 2),
        ("background", 0),
        ("", 0),
    ],
)
def test_the_first_wrong_word(caption, place):
    assert first_wrong(caption, SCENE) == place


def noisy(text, rng):
    """The text, or with a word replaced, or with a stretch said twice."""
    words, kind = text.split(), rng.randrange(3)
    if kind == 1:
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    if kind == 2:
        start = rng.randrange(len(words))
        words = words[: rng.randrange(start, len(words)) + 1] + words[start:]
    return " ".join(words)


def test_both_readers_agree_on_what_is_true():
    scenes, rng = list(load_scenes("val", size="small").values()), random.Random(0)
    true = 0
    for number, scene in enumerate(scenes):
        for text in [*references(scene, rng), full_description(scene)]:
            caption = noisy(text, rng)
            for other in (scene, scenes[number ^ 1]):
                said = parse(caption)
                expected = said is not None and is_true(said, other)
                assert (first_wrong(caption, other) is None) == expected, (caption, other)
                true += expected
    assert 300 < true < 900  # of 1200


def test_no_word_before_the_first_wrong_one_is_wrong():
    """A caption that is cut anywhere before its first wrong word is wrong there at its end, or not at all."""
    scenes, rng = list(load_scenes("val", size="small").values()), random.Random(1)
    for number, scene in enumerate(scenes[:40]):
        for text in references(scenes[number ^ 1], rng):
            place, words = first_wrong(text, scene), text.split()
            for length in range(1, len(words) if place is None else place + 1):
                assert first_wrong(" ".join(words[:length]), scene) in (None, length)


def test_a_reading_ends_at_the_first_word_that_the_language_forbids():
    reading = read("a red of star")
    assert (len(reading.prefixes), reading.length, reading.complete) == (2, 4, False)
