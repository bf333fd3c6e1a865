"""Texts that teach verifiers, and the questions that test them: true where they claim to be, false where they must be."""

import random
from functools import partial

import pytest
import torch

from tellapart.world import WORDS, load_scenes
from tellapart.world.captions import write_as_annotator
from tellapart.world.faults import faults, says_twice, without_places
from tellapart.world.grammar import parse, write
from tellapart.world.prefixes import first_wrong, read
from tellapart.world.questions import ASKED, ATTRIBUTES, attribute_questions, picture_questions, single_objects
from tellapart.world.sayings import (
    CHANGE_WEIGHTS,
    CHANGES,
    Habits,
    break_words,
    careless_text,
    draw_text,
    draw_texts,
)
from tellapart.world.scenes import Scene, SceneObject
from tellapart.world.truth import is_true
from tellapart.world.verifier import JUDGE, reader
from tellapart.world.vocabulary import MAX_NEW_TOKENS

STAR, RING = SceneObject("star", "red", "small", "plain", 0, 0), SceneObject("ring", "blue", "large", "striped", 1, 1)
SCENE = Scene((STAR, RING), "pink")


@pytest.fixture(scope="module")
def scenes():
    return list(load_scenes("val", size="small").values())


def test_texts_are_true(scenes):
    rng = random.Random(0)
    said = [(scene, draw_text(scene, rng, habits)) for scene in scenes for habits in (Habits(), JUDGE)]
    assert all(is_true(text, scene) for scene, text in said)
    assert all(parse(write_as_annotator(text, rng)) == text for _, text in said)


@pytest.mark.parametrize("kind", CHANGES)
def test_every_change_says_something_else_and_is_mostly_false(kind, scenes):
    rng, false, made = random.Random(0), 0, 0
    for scene in scenes:
        text = draw_text(scene, rng, Habits())
        changed = CHANGES[kind](text, scene, rng)
        if changed is not None and changed != text:
            assert parse(write(changed)) == changed
            made, false = made + 1, false + (not is_true(changed, scene))
    assert made > 25
    # What is added at random is seldom true; an object said again may be meant for another one like it.
    assert false / made > (0.4 if kind in ("added", "place", "background") else 0.6)


def test_careless_texts_say_things_twice(scenes):
    rng = random.Random(0)
    doubled = [says_twice(careless_text(scene, rng, Habits()), scene) for scene in scenes]
    assert 0.4 < sum(doubled) / len(doubled) < 0.95


def test_broken_texts_consist_of_words_of_the_world(scenes):
    rng = random.Random(0)
    broken = [break_words("a red star and a blue ring", rng) for _ in range(200)]
    assert {word for text in broken for word in text.split()} <= set(WORDS)
    assert sum(parse(text) is None for text in broken) > 100


def test_four_texts_a_picture_fit_a_captioner(scenes):
    rng = random.Random(0)
    for scene in scenes:
        texts = draw_texts(scene, rng, Habits())
        assert len(texts) == 4
        assert max(len(text.split()) for text in texts) <= MAX_NEW_TOKENS
        assert first_wrong(texts[0], scene) is None
    assert min(CHANGE_WEIGHTS.values()) > 0
    assert set(CHANGE_WEIGHTS) == set(CHANGES)


def test_texts_are_held_against_their_picture_and_one_of_its_cluster():
    scenes = load_scenes("web", size="small")
    ids = list(scenes)[8:14]
    draw = reader(scenes, partial(draw_texts, habits=Habits()), read)
    readings = draw(ids, 5)
    assert readings == draw(ids, 5) != draw(ids, 6)
    assert len(readings.texts) == 4 * len(ids)
    position = {name: i for i, name in enumerate(scenes)}
    for text, name, wrong in zip(readings.text, readings.images, readings.first_wrong, strict=True):
        own = ids[text // 4]
        assert position[name] // 4 == position[own] // 4
        found = first_wrong(readings.texts[text], scenes[name])
        assert wrong == (-1 if found is None else found)


def test_questions_have_one_true_text(scenes):
    asked = picture_questions(scenes)
    assert set(asked) == set(ASKED)
    for name, questions in asked.items():
        for question in questions:
            true, *false = question.texts
            assert is_true(parse(true), scenes[question.row])
            for text in false:
                said = parse(text)
                assert said is None or not is_true(said, scenes[question.row]) or name == "order"
    assert {len(question.texts) for question in asked["place"]} == {4}


def test_attributes_are_asked_of_single_objects(scenes):
    single, pictures = single_objects(scenes[:3])
    assert [len(scene.objects) for scene in single] == [1, 1, 1]
    assert len(pictures) == 3
    counts = {name: len(attribute_questions(name, single)[0].texts) for name in ATTRIBUTES}
    assert counts == {"shape": 8, "colour": 8, "size": 2, "texture": 3, "background": 4}


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("a red star and a blue ring", False),
        ("a red star and a red star", True),
        ("a red star and a star", True),
        ("a red star and a shape", False),
        ("a red star and a shape and a shape", True),
        ("two shapes", False),
        ("a green star and a green star", False),  # there is none at all: false, but not said twice
        ("a red star in the top left and a red star in the top right", True),
    ],
)
def test_an_object_said_twice(text, twice):
    assert says_twice(parse(text), SCENE) == twice


def test_faults_of_captions():
    captions = {
        "a": "a star above a ring",  # a true relation
        "b": "a star below a ring",  # a false one
        "c": "a star in the top left",  # a true cell
        "d": "a heart in the top left",  # false without its cell, too
        "e": "a star star",
    }
    found = faults(captions, dict.fromkeys(captions, SCENE))
    expected = {"place": 200 / 3, "cells": 100, "relations": 50, "said_places": 80, "doubled": 0, "broken": 20}
    assert found == {name: pytest.approx(value) for name, value in expected.items()}
    assert write(without_places(parse("a star above a ring in the top left"))) == "a star and a ring"


def test_words_start_from_what_they_mean():
    from tellapart.world.backbone import AttributeHeads, make_tower
    from tellapart.world.verifier import _meanings, make_verifier

    torch.manual_seed(0)
    tower = make_tower(width=32, mlp_width=32, layers=1)
    listener = make_verifier(tower, AttributeHeads(32))
    meanings = _meanings(listener.tokenizer, [9, 8, 2, 3, 4, 4])
    ids = listener.tokenizer.convert_tokens_to_ids
    assert meanings[ids("disc")].nonzero().flatten().tolist() == [0]
    assert torch.equal(meanings[ids("circle")], meanings[ids("disc")])
    assert meanings[ids("top")].nonzero().flatten().tolist() == [22, 23]  # after 9 + 8 + 2 + 3 classes, cells 0 and 1
    assert meanings[ids("a")].sum() == 0
    assert listener.model.config.readings == [9, 8, 2, 3, 4, 4]
    assert not torch.equal(listener.model.reading.weight[:9], torch.zeros(9, 32))
