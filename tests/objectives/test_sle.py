"""SLE and its comparators: the published vectors through the classes, and what must hold besides."""

import pytest
import torch
from torch import nn

from given import GivenCaptioner, double, given_reward, images, rewards_by_text, run, vector
from tellapart.objectives.scst import SCST
from tellapart.objectives.sle import SLE, SLL, SLLME, pair_advantage
from tellapart.types import Scores


def close(actual, expected, tolerance):
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), double(expected), atol=tolerance, rtol=0.0)


def spread(seq_logp):
    """Token log-probabilities ``[N, 2]`` with the given sums."""
    total = double(seq_logp)
    return torch.stack([total / 4, 3 * total / 4], dim=1)


def given_distance(*matrices):
    return lambda rollout: double(matrices)


def test_surrogate_without_baselines():
    # no greedy caption and no baseline of pairs in the vector: the reward of greedy is 0, and b * mean_j log p_j is added
    inputs, expected, tolerance = vector("sle_surrogate_no_baseline")
    logp, dist, alpha = double(inputs["seq_logp"]), double(inputs["dist"]), inputs["alpha"]
    captioner = GivenCaptioner(spread(inputs["seq_logp"]), torch.ones(3, 2), torch.zeros(3, dtype=torch.long))
    reward = given_reward(rewards_by_text([inputs["cider"]]) | {"0/greedy": 0.0})
    objective = SLE(
        captioner, reward, alpha=alpha, distance=given_distance(inputs["dist"]), num_generations=3, reduction="seq_sum"
    )
    loss, _, _ = run(objective, images(1))
    without = loss - (1 - alpha) * 2 * dist.mean() * logp.mean()
    close(without, expected["loss"], tolerance)
    assert abs(float(loss) - expected["loss"]) > 1e-2


def test_surrogate_with_baselines():
    inputs, expected, tolerance = vector("sle_surrogate_with_baselines")
    captioner = GivenCaptioner(spread(inputs["seq_logp"]), torch.ones(3, 2), torch.zeros(3, dtype=torch.long))
    table = rewards_by_text([inputs["cider"]]) | {"0/greedy": inputs["greedy_cider"]}
    options = {"alpha": inputs["alpha"], "distance": given_distance(inputs["dist"]), "num_generations": 3}
    loss, experience, _ = run(SLE(captioner, given_reward(table), reduction="seq_sum", **options), images(1))
    close(pair_advantage(double([inputs["dist"]]))[0], expected["diversity_adv"], tolerance)
    close(experience.advantage, expected["coef"], tolerance)
    close(loss, expected["loss"], tolerance)
    # a token's gradient is its caption's
    close(captioner.logprobs.grad[:, 0], expected["grad_seq_logp"], tolerance)

    tokens, mask = double(inputs["token_logp"]), double(inputs["token_mask"])
    captioner = GivenCaptioner(tokens, mask, torch.zeros(3, dtype=torch.long))
    loss, _, _ = run(SLE(captioner, given_reward(table), reduction="token_mean", **options), images(1))
    close(loss, expected["loss_token_mean"], tolerance)
    assert captioner.logprobs.grad[2, 3] == 0.0


def test_two_images_have_baselines_of_their_own():
    inputs, expected, tolerance = vector("sle_surrogate_with_baselines")
    second = inputs["second_image"]
    logp = spread([*inputs["seq_logp"], *second["seq_logp"]])
    captioner = GivenCaptioner(logp, torch.ones(6, 2), torch.arange(2).repeat_interleave(3))
    table = rewards_by_text([inputs["cider"], second["cider"]])
    table |= {"0/greedy": inputs["greedy_cider"], "1/greedy": second["greedy_cider"]}
    distance = given_distance(inputs["dist"], second["dist"])
    objective = SLE(
        captioner,
        given_reward(table),
        alpha=inputs["alpha"],
        distance=distance,
        num_generations=3,
        reduction="seq_sum",
    )
    loss, experience, _ = run(objective, images(2))
    close(experience.advantage[3:], expected["coef_second_image"], tolerance)
    close(loss, expected["loss_two_images"], tolerance)


class GivenDistributions(GivenCaptioner):
    """Next-word distributions as a parameter; the first word is the one that is drawn."""

    def __init__(self, probs, mask):
        super().__init__(torch.zeros(mask.shape).double(), mask, torch.arange(len(mask)))
        self.logits = nn.Parameter(probs.log())

    def forward(self, rollout, *, encoded=None, want=()):
        assert want == ("entropy",)
        logp = self.logits.log_softmax(dim=-1)
        return Scores(self.logprobs, entropy=-(logp.exp() * logp).sum(dim=-1))


def test_maximum_entropy():
    inputs, expected, tolerance = vector("sle_max_entropy")
    probs, mask = double(inputs["probs"]), double(inputs["mask"])
    captioner = GivenDistributions(probs, mask)
    reward = given_reward(rewards_by_text([[0.0], [0.0]]) | {"0/greedy": 0.0, "1/greedy": 0.0})
    objective = SLLME(captioner, reward, entropy_coef=inputs["weight"], num_generations=1)
    loss, _, pieces = run(objective, images(2))
    close(inputs["sll_loss"] + loss, expected["loss"], tolerance)
    close(pieces[0].logs["entropy"].mean(), expected["mean_entropy"], tolerance)
    # d(-w H)/d logit_v = w p_v (log p_v + H) / 3 on the three valid tokens, nothing on the padded one
    entropy = double(expected["entropy"])[..., None]
    gradient = inputs["weight"] * probs * (probs.log() + entropy) / 3 * mask[..., None]
    close(captioner.logits.grad / 3, gradient.tolist(), tolerance)  # run divides the other parameter only


@pytest.mark.parametrize("method", [SLL, SLE])
def test_without_exploration_it_is_scst(method):
    logp = -torch.rand(6, 4, generator=torch.Generator().manual_seed(0)).double()
    options = {"alpha": 1.0, "distance": given_distance(*torch.rand(2, 3, 3).tolist())} if method is SLE else {}
    table = rewards_by_text([[0.1, 0.5, 0.4], [0.9, 0.2, 0.3]]) | {"0/greedy": 0.3, "1/greedy": 0.2}
    losses = []
    for kind, more in [(method, options), (SCST, {})]:
        captioner = GivenCaptioner(logp, torch.ones(6, 4), torch.arange(2).repeat_interleave(3))
        losses.append(float(run(kind(captioner, given_reward(table), num_generations=3, **more), images(2))[0]))
    assert losses[0] == losses[1]


def test_a_constant_added_to_all_distances_changes_nothing():
    distances = torch.rand(3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(pair_advantage(distances), pair_advantage(distances + 0.7))
    torch.testing.assert_close(pair_advantage(distances).sum(dim=1), torch.zeros(3, dtype=torch.float64))


def test_choices_that_cannot_be_made():
    captioner = GivenCaptioner(torch.zeros(2, 1), torch.ones(2, 1), torch.zeros(2, dtype=torch.long))
    reward = given_reward({})
    for options in ({"alpha": 1.1}, {"num_generations": 1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            SLE(captioner, reward, **options)
    with pytest.raises(ValueError, match="entropy_coef"):
        SLLME(captioner, reward, entropy_coef=-1)
