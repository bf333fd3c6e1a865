"""The second reader of captions of clips, held against the first, and the texts that it labels."""

import random
from collections import Counter

import pytest

from tellapart.world.scenes import Scene, SceneObject
from tellapart.world.video import load_moving_scenes
from tellapart.world.video.captions import full_description, references
from tellapart.world.video.grammar import parse
from tellapart.world.video.prefixes import first_wrong, words_of
from tellapart.world.video.sayings import CHANGES, change, draw_text, draw_texts
from tellapart.world.video.scenes import Event, MovingScene
from tellapart.world.video.truth import is_true
from tellapart.world.video.vocabulary import WORDS, build_tokenizer
from two_readers import agreed, cuts_are_wrong_where_the_whole_is, noisy

# A red star moves right from the top left, then a blue ring turns pink; a small disc stays.
MOVING = MovingScene(
    Scene(
        (
            SceneObject("star", "red", "small", "plain", 0, 0),
            SceneObject("ring", "blue", "large", "striped", 1, 0),
            SceneObject("circle", "green", "small", "plain", 1, 1),
        ),
        "pink",
    ),
    (Event(0, "moves", "right"), Event(1, "turns", "red")),
)


@pytest.mark.parametrize(
    ("caption", "place"),
    [
        ("a red star moves right", None),
        ("here a star goes", None),
        ("in this clip a star", None),
        ("in this clip", 3),
        ("in that clip", 1),
        ("a red star moves left", 4),
        ("a star stays", 2),
        ("a star in the top left moves right", None),
        ("a star in the top right moves right", 5),
        ("a ring turns red", None),
        ("a ring becomes blue", 3),
        ("a ring turns", 3),
        ("a star moves , then a ring turns red", None),
        ("a star moves then a ring turns red", None),
        ("a ring turns red then a star moves", 4),  # nothing happens afterwards
        ("a star moves , and a ring", 4),
        ("a star moves then a disc", 5),  # which stays
        ("a star moves then a ring", 6),  # it must do something
        ("a star moves then a ring on a pink background", 6),
        ("a star moves then a ring stays", 6),
        ("a star then a ring turns red", 2),
        ("a disc stays and a star moves", None),
        ("a star moves and a star", 5),
        ("two stars", 0),
        ("a star moves right right", 4),
        ("a star moves on a pink background", None),
        ("a star moves on a black background", 5),
        ("", 0),
    ],
)
def test_the_first_wrong_word(caption, place):
    assert first_wrong(caption, MOVING) == place


def clips_and_neighbours():
    """Pairs of a clip and one that it could be taken for."""
    clips = list(load_moving_scenes("val", size="small").values())
    return [(moving, clips[number ^ 1]) for number, moving in enumerate(clips)]


def test_both_readers_agree_on_what_is_true():
    rng = random.Random(0)
    captions = [
        (noisy(words_of(text), WORDS, rng), moving, other)
        for moving, other in clips_and_neighbours()
        for text in [*references(moving, rng), full_description(moving), *draw_texts(moving, rng)]
    ]
    asked = [(caption, clip) for caption, *clips in captions for clip in clips]
    assert 120 < agreed(asked, parse, is_true, first_wrong) < 900  # of 1200


def test_no_word_before_the_first_wrong_one_is_wrong():
    rng = random.Random(1)
    texts = [(words_of(text), clip) for clip, other in clips_and_neighbours()[:40] for text in references(other, rng)]
    cuts_are_wrong_where_the_whole_is(texts, first_wrong)


def test_drawn_texts_are_true_as_drawn_and_mostly_false_once_changed():
    rng, tokenizer, false = random.Random(2), build_tokenizer(), Counter()
    for moving in load_moving_scenes("val", size="small").values():
        for _ in range(20):
            said = draw_text(moving, rng)
            assert is_true(said, moving), said
            false["changed"] += not is_true(change(said, moving, rng), moving)
        for text in draw_texts(moving, rng):
            assert len(tokenizer(text)["input_ids"]) == len(text.split()) + 2  # a word is a token
            false["drawn"] += first_wrong(text, moving) is not None
    assert false["changed"] > 0.7 * 60 * 20
    assert 0.3 < false["drawn"] / 240 < 0.75


@pytest.mark.parametrize("kind", CHANGES)
def test_each_kind_of_change_makes_something_else(kind):
    rng = random.Random(3)
    clips = load_moving_scenes("val", size="small").values()
    made = [(said, CHANGES[kind](said, moving, rng)) for moving in clips for said in [draw_text(moving, rng)]]
    assert sum(found not in (None, said) for said, found in made) > 15, kind
