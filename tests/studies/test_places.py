"""What captions say about places, and what a listener pays for it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from sweep.study_fakes import module, note_measured, study_of
from tellapart.sweep.tasks import Task
from tellapart.world.grammar import parse, write

negclip = module("negclip")
human_captions, mirrored, paid, places = negclip.human_captions, negclip.mirrored, negclip.paid, negclip.places
says, shares, without_places = negclip.says, negclip.shares, negclip.without_places

CELL = "a red star in the top left and a blue box on a gray background"
RELATION = "a red star left of a blue box"
NEITHER = "a red star and a blue box"


def read(text):
    found = parse(text)
    assert found is not None
    return found


def test_kinds_of_places():
    assert [[says(read(text), kind) for kind in ("cell", "relation")] for text in (CELL, RELATION, NEITHER)] == [
        [True, False],
        [False, True],
        [False, False],
    ]


@pytest.mark.parametrize(
    ("text", "bare", "opposite"),
    [
        (
            CELL,
            "a red star and a blue box on a gray background",
            "a red star in the bottom right and a blue box on a gray background",
        ),
        (RELATION, NEITHER, "a red star right of a blue box"),
        ("a star above a box", "a star and a box", "a star below a box"),
        (NEITHER, NEITHER, NEITHER),
    ],
)
def test_places_are_left_out_and_mirrored(text, bare, opposite):
    assert write(without_places(read(text))) == write(read(bare))
    assert write(mirrored(read(text))) == write(read(opposite))
    assert mirrored(mirrored(read(text))) == read(text)


def test_shares_of_captions_with_places():
    # two of five say a place, one of them is true; of the other three, which include one that is no caption, two
    captions = [CELL, RELATION, NEITHER, "star star", "a red star"]
    assert shares(captions, [100.0, 0.0, 100.0, 0.0, 100.0]) == pytest.approx((40.0, 50.0, 200 / 3))
    share, placed, others = shares([NEITHER], [100.0])
    assert (share, others) == (0.0, 100.0)
    assert math.isnan(placed)


class Listener:
    """Likes the word "left" by 1 and "right" by 0.5, on the second of two dimensions, which image ``b`` lacks."""

    name = "fake"

    def cache_images(self, dataset):
        self.known = dataset

    def encode_images(self, batch):
        return torch.tensor([[1.0, 1.0] if image == "a" else [1.0, 0.0] for image in batch.ids])

    def encode_texts(self, texts):
        return torch.tensor([[0.2, 1.0 * ("left" in text) + 0.5 * ("right" in text)] for text in texts])


def test_what_a_listener_pays():
    # Image a: "left of" over "and" is 1, over "right of" 0.5, times 2.5; image b pays nothing; halves of 2.5 and 1.25.
    assert paid(Listener(), {"a": RELATION, "b": RELATION}) == pytest.approx((1.25, 0.625))
    with pytest.raises(ValueError, match="1 of 2 captions do not parse"):
        paid(Listener(), {"a": RELATION, "b": "star star"})


def test_the_first_reference_with_a_place_is_taken():
    examples = [
        SimpleNamespace(id="a", references=["star star", NEITHER, RELATION, CELL]),
        SimpleNamespace(id="b", references=[]),
    ]
    dataset = SimpleNamespace(examples=examples)
    assert human_captions(dataset, "cell") == {"a": CELL}
    assert human_captions(dataset, "relation") == {"a": RELATION}


def test_the_part_of_the_page(tmp_path, monkeypatch):
    study = study_of("negclip", tmp_path)
    _, recipe = study.sweep.load(study.file.rows["xe"].setting)
    tasks = [Task("xe", tmp_path / str(seed), seed, 0, recipe, False, {"test": {}, "beam": {}}) for seed in (0, 1)]
    for task, captions in zip(tasks, ([CELL, NEITHER], [NEITHER, NEITHER]), strict=True):
        said = dict(zip("ab", captions, strict=True))
        note_measured(task, "test", {"start": {}}, captions=said, per_image={"truthful": [0.0, 100.0]})
    vars(study)["measured"] = {"xe": tasks}
    dataset = SimpleNamespace(examples=[SimpleNamespace(id="a", references=[CELL, RELATION])])
    monkeypatch.setattr(negclip, "dataset_of", lambda recipe, split: dataset)
    monkeypatch.setattr("tellapart.world.stages.resolve", lambda name, size: name)
    monkeypatch.setattr("tellapart.listeners.clip.ClipListener.from_pretrained", lambda *_, **__: Listener())
    text = places(study)
    # seed 0: one of two says a place, and is false; seed 1: none does, one of two is true
    assert "| xe | 25.0 ± 35.4 | 0.0 | 75.0 ± 35.4 |" in text
    # "in the top left" is mirrored to "bottom right"
    assert "| negclip | +2.500 | +1.250 | +2.500 | +1.250 |" in text
    assert text.count("| +2.500 | +1.250 | +2.500 | +1.250 |") == 3
