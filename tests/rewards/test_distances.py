"""Distances among the captions of an image, against slow re-computations of each pair."""

from dataclasses import replace

import pytest
import torch

from given import vector
from tellapart.errors import UsageError
from tellapart.metrics.cider import CiderDScorer
from tellapart.metrics.frequencies import DocumentFrequencies
from tellapart.objectives.sle import pair_advantage
from tellapart.rewards.distances import CiderDistance, bleu_distance, edit_distance
from tellapart.types import Batch, Rollout

CAPTIONS = [
    ["a man riding a wave", "A man rides a wave.", "two dogs"],
    ["", "a red bus on a street", "a red bus on the wide street"],
]


def rollout_of(captions):
    texts = [text for texts in captions for text in texts]
    image = torch.arange(len(captions)).repeat_interleave(torch.tensor([len(texts) for texts in captions]))
    batch = Batch([str(i) for i in range(len(captions))], [[] for _ in captions])
    ones = torch.ones(len(texts), 1)
    return Rollout(batch, image, texts, ones.long(), ones.bool(), ones.bool()[:, 0])


def levenshtein(left, right):
    if not left or not right:
        return len(left) + len(right)
    return min(
        levenshtein(left[1:], right) + 1,
        levenshtein(left, right[1:]) + 1,
        levenshtein(left[1:], right[1:]) + (left[0] != right[0]),
    )


def words(text):
    return text.lower().replace(".", "").split()


def test_edit_distance_is_the_recursive_definition():
    found = edit_distance(rollout_of(CAPTIONS))
    assert found.shape == (2, 3, 3)
    for b, texts in enumerate(CAPTIONS):
        for j, left in enumerate(map(words, texts)):
            for k, right in enumerate(map(words, texts)):
                expected = levenshtein(left, right) / max(len(left), len(right), 1)
                assert found[b, j, k] == pytest.approx(expected, abs=1e-7)


def test_bleu_distance_is_the_vector():
    inputs, expected, tolerance = vector("sle_distance_bleu34")
    found = bleu_distance(rollout_of([inputs["captions"]]))
    torch.testing.assert_close(found[0].double(), torch.tensor(expected["d_sym"]).double(), atol=tolerance, rtol=0)


def test_cider_distance_is_one_minus_each_score_over_that_with_itself():
    references = {"1": ["a man riding a wave", "a surfer"], "2": ["a red bus", "two dogs on a street"]}
    frequencies = DocumentFrequencies.from_references(references)
    found = CiderDistance(frequencies)(rollout_of(CAPTIONS))
    scorer = CiderDScorer(frequencies)
    for b, texts in enumerate(CAPTIONS):
        for j, left in enumerate(map(words, texts)):
            for k, right in enumerate(map(words, texts)):

                def score(caption, reference):
                    return scorer.score([caption], [0], scorer.prepare([[reference]]))[0]

                most = score(left, left) + score(right, right)
                value = 1 - (score(left, right) + score(right, left)) / most if most else 1.0
                assert found[b, j, k] == pytest.approx(0.0 if left == right else value, abs=1e-6)
    torch.testing.assert_close(found, found.transpose(1, 2))


def test_equal_captions_are_at_cider_distance_zero_however_short_and_both_directions_count():
    """Copies of a caption of one word were 0.75 apart, and a caption with a repeated word had another distance each way."""
    frequencies = DocumentFrequencies.from_references({"1": ["a red car on the street"], "2": ["a bus", "a dog"]})
    found = CiderDistance(frequencies)(rollout_of([["dog", "dog", "a red dog"], ["", "", "a bus"]]))
    assert found[:, 0, 1].tolist() == [0.0, 0.0]
    assert found[1, 0, 2] == 1.0
    assert 0 < found[0, 0, 2] < 1
    explored = pair_advantage(found)[0]
    assert explored[0] == explored[1] < 0 < explored[2]
    repeated = CiderDistance(frequencies)(rollout_of([["a red car and a red dog", "a red car on the street"]]))
    assert repeated[0, 0, 1] == repeated[0, 1, 0]


@pytest.mark.parametrize("distance", [bleu_distance, edit_distance])
def test_uneven_captions_are_refused(distance):
    with pytest.raises(UsageError, match="equally many captions"):
        distance(rollout_of([["a", "b"], ["c"]]))
    mixed = rollout_of([["a", "b"], ["c", "d"]])
    with pytest.raises(UsageError, match="drawn together"):
        distance(replace(mixed, image=torch.tensor([0, 1, 0, 1])))
