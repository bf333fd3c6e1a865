"""The reward on distance to an asked length, by arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from family_checks import make
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.objectives.scst import SCST
from tellapart.rewards.length import LengthDistance
from tellapart.types import Rollout
from tiny_models import batch_of

TEXTS = ["a dog", "a red dog on a mat", "", "dog."]


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceCaptioner:
    folder: Path = tmp_path_factory.mktemp("model")
    make("CLIP + GPT-2", folder)
    return HuggingFaceCaptioner.from_pretrained(folder, length_buckets=[2, 4]).eval()


def asked(captioner: HuggingFaceCaptioner, *buckets: int) -> Rollout:
    rollout = captioner.tokenize(batch_of(captioner, 4), TEXTS, torch.arange(4))
    return Rollout(**{**vars(rollout), "texts": TEXTS, "bucket": torch.tensor(buckets)})


def test_words_outside_the_range_of_all(captioner):
    reward = LengthDistance(captioner, words="3-5")
    assert reward(asked(captioner, 0, 0, 0, 0)).tolist() == [-1, -1, -3, -2]  # 2, 6, 0 and 1 words
    assert reward(asked(captioner, 0, 0, 0, 0)).dtype == torch.float32


def test_words_outside_the_asked_bucket(captioner):
    # 2 words for 1 to 2; 6 for 3 to 4; none for 5 or more; 1 for 3 to 4
    assert LengthDistance(captioner)(asked(captioner, 0, 1, 2, 1)).tolist() == [0, -2, -5, -2]
    human = captioner.tokenize(batch_of(captioner, 2), TEXTS[:2], torch.arange(2))
    assert LengthDistance(captioner)(human).tolist() == [0, 0], "people keep to their own lengths"


def test_without_buckets_there_must_be_a_range(tmp_path):
    with pytest.raises(UsageError, match="set its words"):
        LengthDistance(make("CLIP + GPT-2", tmp_path))


def test_scst_asks_samples_and_baseline_of_an_image_for_the_same_length(captioner):
    objective = SCST(captioner, LengthDistance(captioner), baseline="greedy", num_generations=3, max_new_tokens=6)
    torch.manual_seed(0)
    heard = []
    objective.reward = lambda rollout: heard.append(rollout) or LengthDistance(captioner)(rollout)
    with torch.no_grad():
        experience = objective.collect(batch_of(captioner, 8), 0)
    (loss,) = objective.losses(objective.prepare([experience], lambda tensor: tensor)[0])
    assert loss.loss.isfinite()
    chosen = {}
    for rollout in heard:
        for name, bucket in zip(rollout.ids(), rollout.bucket.tolist(), strict=True):
            assert chosen.setdefault(name, bucket) == bucket
    assert len(set(chosen.values())) > 1
