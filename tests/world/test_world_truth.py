"""Truth and the measures made of it, against a slow reading of single scenes and hand-made cases."""

import random
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from given import vector
from tellapart.errors import UsageError
from tellapart.world.captions import describe, full_description, write_as_annotator
from tellapart.world.grammar import parse
from tellapart.world.measures import exact_recall, world_measures
from tellapart.world.scenes import Scene, SceneObject, draw_scene, mutate
from tellapart.world.truth import SceneTable, is_true, true_of

RED_STAR = SceneObject("star", "red", "small", "plain", 0, 0)
BLUE_RING = SceneObject("ring", "blue", "large", "striped", 0, 1)
RED_HEART = SceneObject("heart", "red", "large", "plain", 1, 1)
TWO = Scene((RED_STAR, BLUE_RING), "pink")
THREE = Scene((RED_STAR, BLUE_RING, RED_HEART), "black")


@pytest.mark.parametrize(
    ("scene", "caption", "expected"),
    [
        (TWO, "a red star", True),
        (TWO, "a shape", True),
        (TWO, "a blue star", False),  # binding
        (TWO, "a red star and a blue ring", True),
        (TWO, "a blue star and a red ring", False),
        (TWO, "two shapes", True),
        (THREE, "two shapes", False),  # counts are exact
        (THREE, "two red shapes", True),
        (THREE, "three shapes on a black background", True),
        (TWO, "a red star on a black background", False),
        (TWO, "a star left of a ring", True),
        (TWO, "a star right of a ring", False),
        (TWO, "a star above a ring", False),  # the same row
        (THREE, "a ring above a heart", True),
        (THREE, "a star above a red heart", True),
        (THREE, "a red shape above a red shape", True),
        (TWO, "a red shape and a red shape", False),  # every phrase needs an object of its own
        (TWO, "a star in the top left", True),
        (TWO, "a star in the bottom left", False),
        (TWO, "a small plain red star", True),
        (TWO, "a large star", False),
        (THREE, "two shapes above a heart", False),  # there are three shapes
        (THREE, "two red shapes and a ring", True),
        (THREE, "two red shapes and a star", False),  # the star is one of the two
        (THREE, "two red shapes left of a ring", False),  # holds of the star alone
    ],
)
def test_truth_by_hand(scene, caption, expected):
    assert is_true(parse(caption), scene) is expected


ORDER = {
    "above": lambda a, b: a.row < b.row,
    "below": lambda a, b: a.row > b.row,
    "left of": lambda a, b: a.column < b.column,
    "right of": lambda a, b: a.column > b.column,
    "and": lambda a, b: True,
}


def slowly_true(description, scene: Scene) -> bool:
    """All ways to give every phrase its objects, one by one."""

    def fits(phrase, thing):
        said = [(name, getattr(phrase, name)) for name in ("shape", "colour", "size", "texture")]
        right = all(value is None or getattr(thing, name) == value for name, value in said)
        return right and phrase.place in (None, thing.cell)

    if description.background not in (None, scene.background):
        return False
    for phrase in description.phrases:
        if phrase.count > 1 and sum(fits(phrase, thing) for thing in scene.objects) != phrase.count:
            return False
    needed = sum(phrase.count for phrase in description.phrases)
    if needed > len(scene.objects):
        return False
    for chosen in permutations(scene.objects, needed):
        rest, groups = list(chosen), []
        for phrase in description.phrases:
            groups.append([rest.pop(0) for _ in range(phrase.count)])
        fitting = all(fits(p, t) for p, group in zip(description.phrases, groups, strict=True) for t in group)
        related = all(
            ORDER[relation](a, b)
            for first, second, relation in zip(groups, groups[1:], description.relations, strict=False)
            for a in first
            for b in second
        )
        if fitting and related:
            return True
    return False


def test_many_scenes_at_once_equal_the_slow_reading():
    rng = random.Random(11)
    scenes = [draw_scene(rng) for _ in range(60)]
    scenes += [mutate(scene, rng) for scene in scenes]
    table, true, said = SceneTable.of(scenes), 0, 0
    for scene in scenes:
        for description in (describe(scene, rng), describe(scene, rng), parse(full_description(scene))):
            found = true_of(description, table)
            assert found.tolist() == [slowly_true(description, other) for other in scenes]
            true, said = true + found.sum(), said + len(found)
    assert 0.01 < true / said < 0.9


def test_references_are_true_and_full_descriptions_false_of_mutants():
    rng = random.Random(2)
    for _ in range(500):
        scene = draw_scene(rng)
        assert is_true(parse(write_as_annotator(describe(scene, rng), rng)), scene)
        assert is_true(parse(full_description(scene)), scene)
        mutant = mutate(scene, rng)
        if mutant != scene:
            assert not is_true(parse(full_description(scene)), mutant)


def test_a_scene_that_loses_an_object_makes_its_full_description_false():
    assert is_true(parse(full_description(TWO)), replace(THREE, background="pink"))  # one more is no lie
    assert not is_true(parse(full_description(THREE)), replace(TWO, background="black"))


def test_exact_recall_at_k():
    inputs, expected, tolerance = vector("exact_recall_at_k")
    truth = np.array(inputs["truth_caption_by_scene"], dtype=bool)
    parses = np.array(inputs["parses"], dtype=bool)
    found = exact_recall(truth, parses, inputs["ks"])
    for k in inputs["ks"]:
        assert found[k] / 100 == pytest.approx(expected[f"per_caption@{k}"], abs=tolerance)
        assert found[k].mean() == pytest.approx(expected[f"exact_recall@{k}"], abs=1e-9)


def test_measures_by_hand():
    scenes = {"a": TWO, "b": THREE, "c": Scene((RED_STAR,), "pink"), "d": Scene((RED_HEART,), "gray")}
    captions = {
        "a": "a red star and a blue ring",  # true of a and b
        "b": "red red red background",  # not of the language; two of three reds are there
        "c": "a green star on a pink background",  # false: green
        "d": "",
    }
    measured = world_measures(captions, scenes)
    assert measured.per_image["grammatical"] == [100, 0, 100, 0]
    assert measured.per_image["truthful"] == [100, 0, 0, 0]
    assert measured.per_image["exact_recall@1"] == [50, 0, 0, 0]
    assert measured.per_image["exact_recall@5"] == [100, 0, 0, 0]
    assert measured.per_image["hallucinated"] == pytest.approx([0, 0, 100 / 3, 0])
    # a: star, red, small, ring, blue, large, striped, pink = 8, of which 4 are said; b: 3 + 4 + 3 + 1 = 11, of which two reds;
    # c: star, red, small, pink = 4, of which star and pink; d: heart, red, large, gray = 4
    assert measured.per_image["detail"] == pytest.approx([50, 200 / 11, 50, 0])
    assert measured.corpus["detail"] == pytest.approx(np.mean([50, 200 / 11, 50, 0]))


def test_counts_mention_an_attribute_as_often_as_they_say():
    scene = Scene((RED_STAR, replace(RED_STAR, row=1)), "brown")  # 2 x (star, red, small) + brown = 7
    measured = world_measures({"x": "two red stars"}, {"x": scene})
    assert measured.corpus["detail"] == pytest.approx(100 * 4 / 7)
    assert {name: [value] for name, value in measured.corpus.items()} == measured.per_image


def test_other_images_are_refused():
    with pytest.raises(UsageError, match="'b'"):
        world_measures({"a": "a star"}, {"a": TWO, "b": THREE})
