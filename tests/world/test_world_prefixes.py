"""The second reader of captions, held against the first: grammar and truth, and where a caption goes wrong."""

import random

import pytest

from tellapart.world import WORDS, load_scenes
from tellapart.world.captions import full_description, references
from tellapart.world.grammar import parse
from tellapart.world.prefixes import first_wrong, read
from tellapart.world.scenes import Scene, SceneObject
from tellapart.world.truth import is_true
from two_readers import agreed, cuts_are_wrong_where_the_whole_is, noisy

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


def scenes_and_neighbours():
    """Pairs of a scene and one that it could be taken for."""
    scenes = list(load_scenes("val", size="small").values())
    return [(scene, scenes[number ^ 1]) for number, scene in enumerate(scenes)]


def test_both_readers_agree_on_what_is_true():
    rng = random.Random(0)
    captions = [
        (noisy(text, WORDS, rng), scene, other)
        for scene, other in scenes_and_neighbours()
        for text in [*references(scene, rng), full_description(scene)]
    ]
    asked = [(caption, shown) for caption, *both in captions for shown in both]
    assert 300 < agreed(asked, parse, is_true, first_wrong) < 900  # of 1200


def test_no_word_before_the_first_wrong_one_is_wrong():
    rng = random.Random(1)
    texts = [(text, scene) for scene, other in scenes_and_neighbours()[:40] for text in references(other, rng)]
    cuts_are_wrong_where_the_whole_is(texts, first_wrong)


def test_a_reading_ends_at_the_first_word_that_the_language_forbids():
    reading = read("a red of star")
    assert (len(reading.prefixes), reading.length, reading.complete) == (2, 4, False)
