"""The reward that knows the truth."""

import math

import pytest
import torch

from tellapart.errors import UsageError
from tellapart.types import Batch, Rollout
from tellapart.world.oracle import Oracle
from tellapart.world.scenes import Scene, SceneObject

STAR, RING = SceneObject("star", "red", "small", "plain", 0, 0), SceneObject("ring", "red", "large", "plain", 1, 1)
SCENES = {
    "a": Scene((STAR,), "pink"),
    "b": Scene((RING,), "pink"),
    "c": Scene((STAR, RING), "black"),
    "d": Scene((RING,), "gray"),
}


def value(text: str, name: str = "a") -> float:
    tokens = torch.zeros(1, 1, dtype=torch.long)
    given = Batch([name], [[]])
    rollout = Rollout(given, torch.tensor([0]), [text], tokens, tokens.bool(), tokens[:, 0].bool())
    return float(Oracle(SCENES)(rollout)[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a ring", 0.0),  # false
        ("a red red star", 0.0),  # not of the language
        ("a shape", 0.1),  # true of all four: 1.1 - log 4 / log 4
        ("a star", 1.1 - math.log(2) / math.log(4)),
        ("a star on a pink background", 1.1),
    ],
)
def test_what_is_true_of_fewer_scenes_is_worth_more(text, expected):
    assert value(text) == pytest.approx(expected)


def test_it_is_refused_where_nobody_knows_the_truth():
    with pytest.raises(UsageError, match="no scene of image 'photo'"):
        value("a star", "photo")
    with pytest.raises(UsageError, match="at least two scenes"):
        Oracle({"a": SCENES["a"]})
