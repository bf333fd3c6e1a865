"""METEOR as a reward, with data of a few words."""

import numpy as np
import pytest
import torch

from tellapart.errors import UsageError
from tellapart.metrics.meteor import meteor
from tellapart.metrics.meteor_data import Resources
from tellapart.rewards.meteor import Meteor
from tellapart.types import Batch, Rollout

NONE = np.zeros(1, np.int64)
DATA = Resources(frozenset({"a"}), {}, NONE, np.zeros(2, np.int32), NONE[:0], NONE, np.zeros(2, np.int32), NONE[:0])


def rollout(texts, image, references):
    count = len(texts)
    batch = Batch([f"i{n}" for n in range(len(references))], references)
    tokens, mask = torch.zeros(count, 1, dtype=torch.long), torch.ones(count, 1, dtype=torch.bool)
    return Rollout(batch, torch.tensor(image), texts, tokens, mask, mask[:, 0])


def test_reward_is_the_metric_of_each_caption_with_its_image_s_references():
    reward = Meteor(DATA)
    found = reward(rollout(["A dog runs.", "a cat"], [1, 0], [["The cat sat."], ["A dog sits.", "dogs run"]]))
    expected = meteor(["a dog runs", "a cat"], [["a dog sits", "dogs run"], ["the cat sat"]], DATA)[1]
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected.tolist())
    assert found.min() > 0


def test_an_image_without_references_is_an_error():
    with pytest.raises(UsageError, match="METEOR reward needs references"):
        Meteor(DATA)(rollout(["a dog"], [0], [[]]))
