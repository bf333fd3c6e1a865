"""Questions about scenes, and the reader that answers them exactly."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from tellapart.evaluation.question_answering import QuestionMeasure
from tellapart.rewards.question_answering import Asked, answered
from tellapart.world.captions import full_description
from tellapart.world.grammar import parse
from tellapart.world.multiple_choice import ExactReader, questions_about
from tellapart.world.scenes import draw_scene
from tellapart.world.truth import is_true

SCENES = {str(i): draw_scene(random.Random(i)) for i in range(600)}


def test_the_first_option_alone_is_true():
    found = questions_about(dict(list(SCENES.items())[:100]))
    assert {one.question.split()[0] for own in found.values() for one in own} == {"What", "Which", "Where"}
    for image, own in found.items():
        for one in own:
            true = [is_true(parse(option), SCENES[image]) for option in one.options]
            assert true == [True, False, False, False]
    assert questions_about({"7": SCENES["7"]})["7"] == found["7"]


def test_the_exact_reader_counts_scenes():
    reader = ExactReader(SCENES, gallery=400)
    question = questions_about({"7": SCENES["7"]})["7"][0]
    caption = "a shape on a pink background"
    (found,) = reader.answer([Asked(caption, question, (0, 1, 2, 3))])
    gallery = list(SCENES.values())[:400]
    counts = [
        sum(is_true(parse(caption), scene) and is_true(parse(option), scene) for scene in gallery)
        for option in question.options
    ]
    expected = [math.log(n / sum(counts)) if n else -math.inf for n in counts]
    assert found == pytest.approx(expected)
    (nothing,) = reader.answer([Asked("no caption of the world", question, (0, 1, 2, 3))])
    (empty,) = reader.answer([Asked("", question, (0, 1, 2, 3))])
    assert nothing == empty != found


def test_a_full_description_answers_every_question_and_no_caption_few():
    some = dict(list(SCENES.items())[:60])
    measure = QuestionMeasure(ExactReader(SCENES), questions_about(some), called="from world")
    metrics, _ = measure({image: full_description(scene) for image, scene in some.items()})
    assert metrics["QA"] == 100.0
    assert 15 < metrics["QA_floor"] < 45
    assert metrics["QA_chance"] == pytest.approx(25.0)


def test_a_false_colour_is_a_wrong_answer():
    image, scene = next((name, scene) for name, scene in SCENES.items() if len(scene.objects) == 1)
    questions = {image: [one for one in questions_about({image: scene})[image] if "colour" in one.question]}
    false = questions[image][0].options[1]
    values = answered(ExactReader(SCENES), [(image, questions[image][0].options[0]), (image, false)], questions)
    assert values == [1.0, 0.0]
    assert np.isfinite(values).all()
