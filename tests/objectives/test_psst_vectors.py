"""The published vectors of PSST and its baselines, through the objective classes."""

import pytest
import torch
from psst_fakes import GivenListener, OwnScore, TableSpeaker, batch_of, by_kind, learn, logits_of

from given import double, vector
from tellapart.objectives import METHODS
from tellapart.objectives.joint import Luo2018, ReinforceJoint
from tellapart.objectives.psst import PSST, GumbelAnnealed


def close(actual, expected, tolerance):
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), double(expected), atol=tolerance, rtol=0.0)


def one_caption(inputs, method, **given):
    """The vector's caption for image 0, and some other for image 1, heard with weight 1 and a margin beyond all scores."""
    logits = double([inputs["logits"], inputs["logits"][::-1]])
    speaker = TableSpeaker(logits, **given)
    listener = OwnScore(double(inputs["downstream_linear_weight"]))
    fixed = METHODS[method].fixed
    options = {"discriminability_weight": 1.0, "margin": 2.0, **fixed}
    reward = by_kind([0.0, 0.0], [0.0, 0.0])
    return speaker, lambda **more: PSST(speaker, reward, listener, **options, **more)


def own_and_other(first, second):
    return torch.tensor([first, second])


def test_psst_multinomial_mixing():
    inputs, expected, tolerance = vector("psst_multinomial_mixing")
    speaker, make = one_caption(
        inputs,
        "psst",
        sampled=own_and_other(inputs["sampled_index"], [0, 0]),
        soft=own_and_other(inputs["soft_mask"], [0, 0]),
    )
    _, logs = learn(make(), batch_of(2))
    # With all other similarities 0, the hinge of image 0 is twice 2 - score.
    close(2.0 - logs["own_listener/hinge"][0] / 2, expected["score"], tolerance)
    close(speaker.logits.grad[0] / -2, expected["grad_logits"], tolerance)


def test_st_gumbel_softmax():
    inputs, expected, tolerance = vector("st_gumbel_softmax")
    noise = double([inputs["gumbel_noise"], inputs["gumbel_noise"]])
    speaker, make = one_caption(inputs, "st_gumbel", noise=noise)
    _, logs = learn(make(temperature=inputs["temperature"]), batch_of(2))
    close(2.0 - logs["own_listener/hinge"][0] / 2, expected["score"], tolerance)
    close(speaker.logits.grad[0] / -2, expected["grad_logits"], tolerance)


def annealed(**options):
    speaker = TableSpeaker(torch.zeros(2, 1, 2))
    return GumbelAnnealed(speaker, by_kind([0, 0], [0, 0]), OwnScore(torch.zeros(2)), **options)


def test_gumbel_anneal():
    inputs, expected, tolerance = vector("gumbel_anneal")
    every = annealed(anneal_rate=inputs["r"], anneal_every=1)
    close([every.relaxation_at(t).temperature for t in inputs["t"]], expected["tau"], tolerance)
    held = annealed(anneal_rate=inputs["r"])
    close(
        [held.relaxation_at(t).temperature for t in (0, 499, 6500, 6931)],
        [1.0, 1.0, *[0.522045776761016] * 2],  # exp(-0.65)
        tolerance,
    )


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_disc_hinge_hardest(margin):
    inputs, expected, tolerance = vector("disc_hinge_hardest")
    listener = GivenListener(double(inputs["sim_image_by_caption"]))
    speaker = TableSpeaker(torch.zeros(3, 1, 2).double())
    reward = by_kind([0.0] * 3, [0.0] * 3)
    objective = PSST(speaker, reward, listener, discriminability_weight=1.0, margin=margin)
    loss, logs = learn(objective, batch_of(3))
    close(loss, expected[f"sum_m{margin}"], tolerance)
    close(logs["own_listener/hinge"], expected[f"per_sample_m{margin}"], tolerance)


@pytest.mark.parametrize("method", ["psst", "st_multinomial"])
def test_psst_total(method):
    inputs, expected, tolerance = vector("psst_total")
    speaker = TableSpeaker(
        logits_of(inputs["logp"]), double(inputs["mask"]), sampled=torch.ones(2, 4, dtype=torch.long)
    )
    reward = by_kind(inputs["cider"], inputs["greedy_cider"])
    share = (0.2 * 4 - inputs["disc_sum"]) / 4  # both images: hinges 2 * (0.2 - share)
    listener = GivenListener(share * torch.eye(2).double())
    options = {"discriminability_weight": inputs["lam"], **METHODS[method].fixed}
    loss, logs = learn(PSST(speaker, reward, listener, **options), batch_of(2))
    close(logs["own_listener/hinge"].sum(), inputs["disc_sum"], tolerance)
    close(loss, expected["total"], tolerance)


def hinges(values: list[float], margin: float = 1.0) -> torch.Tensor:
    """Similarities with these hinges: ``2 * (margin - own)`` where all others are 0."""
    return torch.diag(margin - double(values) / 2)


@pytest.mark.parametrize("kind", [ReinforceJoint, Luo2018])
def test_reinforce_disc_speaker(kind):
    inputs, expected, tolerance = vector("reinforce_disc_speaker")
    speaker = TableSpeaker(logits_of(inputs["logp"]), double(inputs["mask"]), sampled=torch.ones(2, 4).long())
    sampled, baseline = hinges(inputs["hinge_sample"]), hinges(inputs["hinge_baseline"])
    listener = GivenListener(sampled, human=baseline)
    weight = 0.3
    reward = by_kind([1.1, 0.7], [0.9, 0.9])
    nat = vector("psst_total")[1]["nat"]  # the same captions with these rewards
    if kind is Luo2018:
        speaker.generate = greedy_says_nothing(speaker)  # type: ignore[method-assign]
    objective = kind(speaker, reward, listener, discriminability_weight=weight, margin=1.0)
    loss, _ = learn(objective, batch_of(2))
    beside = 1.0 if kind is Luo2018 else 1 - weight
    close(loss, weight * expected["loss"] + beside * nat, tolerance)


def greedy_says_nothing(speaker):
    """Greedy captions of word 0 only, which :class:`GivenListener` takes for its second table."""

    def generate(batch, decoding, *, encoded=None):
        tokens = torch.ones(2, 4).long() if decoding.do_sample else torch.zeros(2, 4).long()
        return speaker.rollout(batch, tokens, "drawn" if decoding.do_sample else "greedy")

    return generate
