import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart.data.dataset import Collate
from tellapart.world import Scene, SceneObject, load_scenes, load_world
from tellapart.world.backbone import (
    ACCURACY,
    INPUTS,
    PAIR_WEIGHTS,
    SIZES,
    Answers,
    Attributes,
    image_processor,
    load_heads,
    make_tower,
    pixels,
    save_taught,
)

STAR = SceneObject("star", "red", "small", "plain", 0, 1)
RING = SceneObject("ring", "white", "large", "dotted", 1, 0)


@pytest.fixture(scope="module")
def some():
    """``(objective, batch)`` of eight pictures of the small world."""
    torch.manual_seed(0)
    scenes, examples = load_scenes("val", size="small"), load_world("val", size="small").examples[:8]
    return Attributes(make_tower(width=32, mlp_width=32, layers=2), scenes), Collate({INPUTS: pixels})(examples)


def test_answers_of_two_objects():
    answers = Answers.of([Scene((STAR, RING), "pink"), Scene((STAR,), "black")])
    values = {
        name: dict(zip(SIZES, cell, strict=True)) for name, cell in zip("abcd", answers.cells[0].tolist(), strict=True)
    }
    empty = {"shape": 8, "colour": -100, "size": -100, "texture": -100}
    assert values == {
        "a": empty,
        "b": {"shape": 3, "colour": 0, "size": 0, "texture": 0},
        "c": {"shape": 6, "colour": 7, "size": 1, "texture": 2},
        "d": empty,
    }
    assert answers.background.tolist() == [2, 0]
    assert answers.filled.tolist() == [[False, True, True, False], [False, True, False, False]]
    # Two objects that share no value have two combinations for each of the six pairs; shape-colour comes first.
    assert answers.pairs.sum(dim=1).tolist() == [2 * len(PAIR_WEIGHTS), len(PAIR_WEIGHTS)]
    assert answers.pairs[0, :64].nonzero().flatten().tolist() == [3 * 8 + 0, 6 * 8 + 7]


def test_pixels_are_what_the_processor_gives():
    drawn = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    pictures = [Image.fromarray(array) for array in drawn]
    theirs = image_processor()(images=pictures, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(pixels(pictures)["pixel_values"], theirs, atol=1e-6, rtol=0)


def test_loss_of_blank_heads_counts_every_answer(some):
    objective, batch = some
    blank = Attributes(objective.tower, {image_id: Scene((STAR, RING), "pink") for image_id in batch.ids})
    for parameter in blank.heads.parameters():
        torch.nn.init.zeros_(parameter)
    [output] = blank.losses(batch)
    pairs = math.log(2) * sum(weight * SIZES[a] * SIZES[b] for (a, b), weight in PAIR_WEIGHTS.items())
    # Four cells are asked for shape (or none) and kind, two of four for the rest; a cell counts a quarter.
    cells = math.log(9) + (math.log(8) + math.log(2) + math.log(3)) / 2
    # What cells hold is asked twice: of their own tokens, and of CLS. Each token is also asked its cell and the background.
    asked = math.log(4) + pairs + math.log(65) + 2 * cells + math.log(4) + math.log(4)
    assert float(output.loss.detach()) / float(output.weight) == pytest.approx(asked, rel=1e-5)


def test_loss_adds_up_over_parts_of_a_batch(some):
    objective, batch = some
    outputs = [
        next(iter(objective.losses(part))) for part in (batch, batch.select([0, 1, 2]), batch.select([3, 4, 5, 6, 7]))
    ]
    whole, *parts = [float(output.loss.detach()) for output in outputs]
    assert sum(parts) == pytest.approx(whole, rel=1e-5)
    assert [float(output.weight) for output in outputs] == [8, 3, 5]


def test_accuracy_of_heads_that_always_say_the_same(some):
    objective, batch = some
    constant = Attributes(objective.tower, {image_id: Scene((STAR, RING), "pink") for image_id in batch.ids})
    with torch.no_grad():
        for parameter in constant.heads.parameters():
            parameter.zero_()
        constant.heads.cells["shape"].bias[3] = 1.0  # every cell: a star
        constant.heads.background.bias[2] = 1.0
    found = constant.accuracy(batch)
    # Blank logits say the first value: red, small and plain, which is right of one object of two.
    expected = {"shape": 50, "colour": 50, "size": 50, "texture": 50, "empty": 0, "background": 100, "pairs": 0}
    # Every token says it is the top left cell, which neither object is in; CLS says a circle everywhere.
    expected |= {"place": 0, "map_shape": 0, "map_colour": 50, "map_size": 50, "map_texture": 50}
    expected |= {"map_object": 0, "map_empty": 0}
    assert found == {name: pytest.approx(value) for name, value in expected.items()}


def test_heads_are_kept_beside_their_tower(some, tmp_path):
    objective, _ = some
    save_taught(objective, tmp_path, image_processor(), "small")
    loaded = load_heads(tmp_path)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in objective.heads.state_dict().items())
    assert [head.out_features for head in loaded.of_tokens()] == [9, 8, 2, 3, 4, 4]
    assert json.loads((tmp_path / ACCURACY).read_text())["place"] >= 0


def test_the_tower_has_a_token_for_each_cell(some):
    objective, batch = some
    assert objective.tower(**batch.inputs[INPUTS]).last_hidden_state.shape == (8, 5, 32)
    mirrored = {"pixel_values": batch.inputs[INPUTS]["pixel_values"].clone()}
    mirrored["pixel_values"][:, :, 32:, :32] = 0  # blank the bottom left cell
    before, after = (objective.tower.embeddings(inputs["pixel_values"]) for inputs in (batch.inputs[INPUTS], mirrored))
    assert (before != after).any(dim=2).all(dim=0).tolist() == [False, False, False, True, False]
