"""Recall by a captioner's own listener: whose weights change, and which is asked anew each time."""

import numpy as np
import pytest
import torch
from evaluation_fakes import toy_dataset

from tellapart.evaluation.own_listener import OwnListenerScorer

CAPTIONS = {"a": "one", "b": "two", "c": "three"}
REFERENCES = {"a": ["one", "two"], "b": ["two"], "c": ["one"]}


class Angles:
    """Texts and images are unit vectors of a plane by their angle in degrees."""

    name = "own_listener"

    def __init__(self, angles):
        self.angles = angles

    def vectors(self, keys):
        turned = torch.tensor([np.deg2rad(self.angles[key]) for key in keys])
        return torch.stack([turned.cos(), turned.sin()], dim=1)

    def encode_texts(self, texts):
        return self.vectors(texts)

    def encode_ids(self, ids):
        return self.vectors(ids)


def dataset():
    return toy_dataset(REFERENCES)


def test_recall_of_drawn_and_of_human_captions():
    # Angles from images: "one" is nearest a, "two" nearest c, "three" nearest c.
    listener = Angles({"a": 0, "b": 40, "c": 90, "one": 5, "two": 70, "three": 80})
    metrics, columns = OwnListenerScorer(listener, dataset())(CAPTIONS, REFERENCES)
    assert columns["own_listener_rank"] == [1, 2, 1]
    assert metrics["own_listener_R@1"] == pytest.approx(200 / 3)
    assert metrics["own_listener_R@5"] == 100
    assert columns["own_listener_R@1"] == [100.0, 0.0, 100.0]
    # "one" of a finds it, "two" of a and of b and "one" of c do not.
    assert metrics["own_listener_human_R@1"] == pytest.approx(25.0)
    assert metrics["own_listener_human_R@10"] == 100


def test_weights_that_change_are_seen():
    listener = Angles({"a": 0, "b": 40, "c": 90, "one": 5, "two": 70, "three": 80})
    scorer = OwnListenerScorer(listener, dataset())
    before = scorer(CAPTIONS, {})[0]
    assert "own_listener_human_R@1" not in before
    listener.angles |= {"two": 41}
    assert scorer(CAPTIONS, {})[0]["own_listener_R@1"] == 100 > before["own_listener_R@1"]


def test_images_are_embedded_anew_where_their_side_learns():
    class Looking(Angles):
        def encode_images(self, batch):
            return self.vectors(batch.ids)

        def encode_ids(self, ids):
            raise AssertionError("these are the embeddings of the start")

    angles = {"a": 0, "b": 40, "c": 90, "one": 5, "two": 41, "three": 80}
    process = lambda pictures: {"pixel_values": torch.zeros(len(pictures), 1)}  # noqa: E731
    metrics, _ = OwnListenerScorer(Looking(angles), dataset(), process=process)(CAPTIONS, REFERENCES)
    assert metrics["own_listener_R@1"] == 100
