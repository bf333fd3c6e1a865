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
    clips, rng = list(load_moving_scenes("val", size="small").values()), random.Random(0)
    true = 0
    for number, moving in enumerate(clips):
        for text in [*references(moving, rng), full_description(moving), *draw_texts(moving, rng)]:
            caption = noisy(words_of(text), rng)
            for other in (moving, clips[number ^ 1]):
                said = parse(caption)
                expected = said is not None and is_true(said, other)
                assert (first_wrong(caption, other) is None) == expected, (caption, other)
                true += expected
    assert 120 < true < 900  # of 1200


def test_no_word_before_the_first_wrong_one_is_wrong():
    """A caption that is cut anywhere before its first wrong word is wrong there at its end, or not at all."""
    clips, rng = list(load_moving_scenes("val", size="small").values()), random.Random(1)
    for number, moving in enumerate(clips[:40]):
        for text in map(words_of, references(clips[number ^ 1], rng)):
            place, words = first_wrong(text, moving), text.split()
            for length in range(1, len(words) if place is None else place + 1):
                assert first_wrong(" ".join(words[:length]), moving) in (None, length)


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
