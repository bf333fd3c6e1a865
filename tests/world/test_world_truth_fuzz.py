"""Truth of arbitrary descriptions, also ones no annotator writes, against the slow reading of single scenes."""

import random
from itertools import product

import pytest
from test_world_truth import slowly_true

from tellapart.world import spec
from tellapart.world.grammar import Description, NounPhrase
from tellapart.world.scenes import VALUES, Scene, draw_scene
from tellapart.world.truth import SceneTable, true_of


def some_description(rng: random.Random, scene: Scene) -> Description:
    """Mostly what holds of ``scene``, so that many descriptions are true of something."""

    def phrase() -> NounPhrase:
        thing = rng.choice(scene.objects)
        said = {name: getattr(thing, name) for name in VALUES if rng.random() < 0.2}
        place = thing.cell if rng.random() < 0.15 else None
        return NounPhrase(rng.choices((1, 2, 3), (0.75, 0.2, 0.05))[0], place=place, **said)

    phrases = tuple(phrase() for _ in range(rng.choices((1, 2, 3, 4), (0.35, 0.35, 0.25, 0.05))[0]))
    relations = tuple(rng.choice(spec.RELATIONS) for _ in phrases[1:])
    return Description(phrases, relations, scene.background if rng.random() < 0.2 else None)


@pytest.mark.parametrize("seed", range(3))
def test_truth_of_any_description_equals_the_slow_reading(seed):
    rng = random.Random(seed)
    scenes = [draw_scene(rng) for _ in range(80)]
    table, true = SceneTable.of(scenes), dict.fromkeys((1, 2, 3, 4), 0)
    for scene in scenes * 3:
        description = some_description(rng, scene)
        found = true_of(description, table).tolist()
        assert found == [slowly_true(description, other) for other in scenes]
        true[len(description.phrases)] += sum(found)
    assert min(true[1], true[2], true[3]) > 20  # the comparison was of something
    assert true[4] == 0  # four phrases need four objects, and no scene has more than three


def test_one_relation_and_its_opposite_never_hold_of_the_same_pair():
    rng = random.Random(8)
    table = SceneTable.of([scene for scene in (draw_scene(rng) for _ in range(400)) if len(scene.objects) == 2])
    for first, second in (("above", "below"), ("left of", "right of")):
        for shape, other in product(spec.SHAPES, repeat=2):
            if shape != other:
                phrases = (NounPhrase(shape=shape), NounPhrase(shape=other))
                both = (true_of(Description(phrases, (relation,)), table) for relation in (first, second))
                assert not (next(both) & next(both)).any()
