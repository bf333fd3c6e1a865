"""Rewards for what is true, and for what only one image fits."""

import math

import numpy as np
import pytest
import torch

from discriminator_fakes import tiny_listener
from tellapart.errors import UsageError
from tellapart.listeners.dual import DualMatcher
from tellapart.listeners.matcher import ItmMatcher
from tellapart.listeners.neighbours import Neighbours
from tellapart.rewards.claims import ClaimF1, ClaimPrecision
from tellapart.rewards.context import ConfirmedContext
from tellapart.rewards.likelihood import Likelihood
from tellapart.rewards.lookalikes import Lookalikes
from tellapart.rewards.truth import Truth
from tellapart.types import Batch, Rollout
from tiny.matchers import TINY_MATCHERS
from tiny_late import IDS, pictures, tiny_late

TEXTS = ["a red star", "two shapes", "a red star"]


def rollout(ids=("z", "x"), image=(0, 1, 1)) -> Rollout:
    tokens = torch.zeros(len(TEXTS), 1, dtype=torch.long)
    batch = Batch(list(ids), [[] for _ in ids])
    return Rollout(batch, torch.tensor(image), TEXTS, tokens, tokens.bool(), tokens[:, 0].bool())


@pytest.fixture
def late():
    listener = tiny_late()
    listener.cache_images(pictures())
    return listener


def test_truth_is_the_log_probability_of_a_match_with_a_floor(late):
    exact = late.logprobs(TEXTS, IDS)[[0, 1, 2], [2, 0, 0]]
    torch.testing.assert_close(Truth(late, floor=-1e3)(rollout()), exact, atol=1e-4, rtol=0)
    floor = float(exact.mean())
    assert Truth(late, floor=floor)(rollout()).min() == pytest.approx(floor)
    with pytest.raises(ValueError, match="floor=0"):
        Truth(late, floor=0)


@pytest.mark.parametrize("kind", TINY_MATCHERS)
def test_a_matching_head_gives_the_softmax_of_its_two_logits(kind, tmp_path):
    matcher = ItmMatcher.from_pretrained(TINY_MATCHERS[kind](tmp_path))
    matcher.know_images(pictures())
    logits = [matcher.match_ids([name], [[text]])[0][0] for name, text in zip("zxx", TEXTS, strict=True)]
    expected = [-math.log1p(math.exp(float(no - yes))) for no, yes in logits]
    assert Truth(matcher)(rollout()).tolist() == pytest.approx(expected, abs=1e-4)


def test_likelihood_of_a_late_listener_is_the_softmax_over_images(late):
    matrix = late.logprobs(TEXTS, IDS)
    expected = matrix.log_softmax(dim=1)[[0, 1, 2], [2, 0, 0]]
    torch.testing.assert_close(Likelihood(late, IDS)(rollout()), expected, atol=1e-4, rtol=0)
    # Ids given twice count once.
    torch.testing.assert_close(Likelihood(late, [*IDS, *IDS])(rollout()), expected, atol=1e-4, rtol=0)


def test_likelihood_of_a_dual_encoder_is_at_its_own_temperature():
    listener = tiny_listener(seed=1)
    listener.cache_images(pictures())
    cosines = listener.encode_texts(TEXTS) @ listener.encode_ids(IDS).T
    expected = (listener.logit_scale.exp() * cosines).log_softmax(dim=1)[[0, 1, 2], [2, 0, 0]].detach()
    torch.testing.assert_close(Likelihood(listener, IDS)(rollout()), expected, atol=1e-5, rtol=0)
    assert Likelihood(listener, IDS, floor=-1e-9)(rollout()).min() == pytest.approx(-1e-9)


@pytest.mark.parametrize("kind", ["late", "dual"])
def test_likelihood_is_not_rounded_by_the_autocast_around_it(kind, late):
    """A training with bf16 rewards its captions within autocast, whose logits were a multiple of an eighth."""
    listener = late if kind == "late" else tiny_listener(seed=1)
    listener.cache_images(pictures())
    exact, matrix = Likelihood(listener, IDS)(rollout()), late.logprobs(TEXTS, IDS)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Likelihood(listener, IDS)(rollout()), exact)
        assert torch.equal(late.logprobs(TEXTS, IDS), matrix)


def test_an_image_outside_the_gallery_joins_it(late):
    # x is in the gallery of x and y, z is not: its captions are compared with all three.
    matrix = late.logprobs(TEXTS, IDS)
    expected = [matrix[0].log_softmax(dim=0)[2], *(matrix[row, :2].log_softmax(dim=0)[0] for row in (1, 2))]
    torch.testing.assert_close(Likelihood(late, ["x", "y"])(rollout()), torch.stack(expected), atol=1e-4, rtol=0)


NEAR = Neighbours(IDS, IDS, np.array([[1, 2], [2, 0], [0, 1]])[:, :1], np.ones((3, 1)))
"""y looks like x, z like y and x like z."""


@pytest.mark.parametrize("kind", ["late", "dual"])
def test_lookalikes_are_the_softmax_over_the_image_and_its_own_look_alikes(kind, late):
    listener = late if kind == "late" else tiny_listener(seed=1)
    listener.cache_images(pictures())
    matrix = late.logprobs(TEXTS, IDS)
    if kind == "dual":
        matrix = (listener.logit_scale.exp() * listener.encode_texts(TEXTS) @ listener.encode_ids(IDS).T).detach()
    pairs = [(row[own], row[other]) for row, own, other in zip(matrix.tolist(), (2, 0, 0), (0, 1, 1), strict=True)]
    expected = [-math.log1p(math.exp(other - own)) for own, other in pairs]
    with torch.autocast("cpu", torch.bfloat16):
        found = Lookalikes(listener, NEAR)(rollout())
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    assert Lookalikes(listener, NEAR, floor=-1e-9)(rollout()).min() == pytest.approx(-1e-9)


def test_every_other_image_as_look_alike_gives_the_likelihood(late):
    every = Neighbours(IDS, IDS, np.array([[1, 2], [2, 0], [0, 1]]), np.ones((3, 2)))
    torch.testing.assert_close(Lookalikes(late, every)(rollout()), Likelihood(late, IDS)(rollout()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("reward", [Truth, ClaimPrecision, ClaimF1, ConfirmedContext])
def test_a_dual_encoder_does_not_tell_what_is_true(reward):
    with pytest.raises(UsageError, match="is a dual encoder, which gives no probability of a match"):
        reward(DualMatcher(tiny_listener(seed=1)))


def test_what_cannot_be_is_refused(late):
    with pytest.raises(UsageError, match="image 'w' has no mined neighbours"):
        Lookalikes(late, NEAR)(rollout(ids=("w", "x")))
    with pytest.raises(UsageError, match="no vectors of image 'w'"):
        Likelihood(late, ["x", "y"])(rollout(ids=("w", "x")))
    with pytest.raises(ValueError, match="floor"):
        Likelihood(late, IDS, floor=0.5)
