"""The published vectors of xe, scst and dico, through the objective classes."""

import pytest
import torch

from given import GivenCaptioner, double, given_reward, images, rewards_by_text, run, vector
from tellapart.objectives.dico import DiCO, classify
from tellapart.objectives.scst import SCST
from tellapart.objectives.xe import XE
from tellapart.ops import group_mean, group_std, leave_one_out_mean, sequence_logprob


def close(actual, expected, tolerance):
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), double(expected), atol=tolerance, rtol=0.0)


def test_xe_token_mean():
    inputs, expected, tolerance = vector("xe_token_mean")
    logprobs, mask = double(inputs["logp_gt"]), double(inputs["mask"])
    captioner = GivenCaptioner(logprobs, mask, torch.arange(2))
    loss, _, _ = run(XE(captioner), images(2))
    close(loss, expected["loss"], tolerance)
    # the gradient is -1/7 on the seven real tokens and exactly 0 on the junk
    close(captioner.logprobs.grad, (-mask / 7).tolist(), tolerance)


@pytest.mark.parametrize("reduction", ["token_mean", "seq_sum", "seq_mean"])
def test_scst_greedy(reduction):
    inputs, expected, tolerance = vector("scst_greedy")
    captioner = GivenCaptioner(double(inputs["logp"]), double(inputs["mask"]), torch.arange(2))
    table = rewards_by_text([[r] for r in inputs["reward"]])
    table |= {f"{b}/greedy": r for b, r in enumerate(inputs["greedy_reward"])}
    objective = SCST(captioner, given_reward(table), num_generations=1, reduction=reduction)
    loss, experience, _ = run(objective, images(2))
    close(experience.advantage, expected["advantage"], tolerance)
    close(loss, expected[f"loss_{reduction}"], tolerance)
    if reduction == "token_mean":
        close(captioner.logprobs.grad, expected["grad_logp_token_mean"], tolerance)


def test_nsc_leave_one_out():
    inputs, expected, tolerance = vector("nsc_leave_one_out")
    count = 6
    captioner = GivenCaptioner(
        -torch.ones(count, 2).double(), torch.ones(count, 2), torch.arange(2).repeat_interleave(3)
    )
    reward = given_reward(rewards_by_text(inputs["rewards"]))
    objective = SCST(captioner, reward, baseline="leave_one_out", num_generations=3)
    _, experience, _ = run(objective, images(2))
    close(experience.advantage.view(2, 3), expected["advantage"], tolerance)


def test_group_advantages_flat():
    inputs, expected, tolerance = vector("group_advantages_flat")
    rewards, image = double(inputs["rewards"]), torch.tensor(inputs["image"])
    close(group_mean(rewards, image), expected["mean_baseline"], tolerance)
    close(leave_one_out_mean(rewards, image), expected["loo_baseline"], tolerance)
    normalised = (rewards - group_mean(rewards, image)) / (group_std(rewards, image) + inputs["std_eps"])
    close(normalised, expected["adv_grpo"], tolerance)
    # the same rewards through the objective: groups of 3, 4 and 2, not adjacent, one token each
    captioner = GivenCaptioner(double(inputs["seq_logp"])[:, None], torch.ones(9, 1), image)
    seen: dict[int, int] = {}
    table = {}
    for b, value in zip(inputs["image"], inputs["rewards"], strict=True):
        table[f"{b}/{seen.setdefault(b, 0)}"] = value
        seen[b] += 1
    objective = SCST(captioner, given_reward(table), baseline="leave_one_out", reduction="seq_sum")
    loss, experience, _ = run(objective, images(3))
    close(experience.advantage, expected["adv_loo"], tolerance)
    close(loss, expected["loss_rloo_seq_sum"], tolerance)
    close(captioner.logprobs.grad[:, 0], expected["grad_rloo_seq_logp"], tolerance)


@pytest.mark.parametrize("reduction", ["seq_mean", "seq_sum"])
def test_scst_beam_mean_baseline(reduction):
    inputs, expected, tolerance = vector("scst_beam_mean_baseline")
    lengths = [int(n) for n in inputs["n_tokens"][0]]
    mask = torch.tensor([[t < n for t in range(max(lengths))] for n in lengths])
    # any token values with the given sum: all of it on the first token
    logprobs = torch.zeros(5, max(lengths)).double()
    logprobs[:, 0] = double(inputs["seq_logp"][0])
    captioner = GivenCaptioner(logprobs, mask, torch.zeros(5, dtype=torch.long))
    reward = given_reward(rewards_by_text(inputs["rewards"]))
    loss, experience, _ = run(SCST(captioner, reward, baseline="beam_mean", reduction=reduction), images(1))
    close(experience.advantage, expected["advantage"][0], tolerance)
    close(loss, expected["loss_len_norm" if reduction == "seq_mean" else "loss_seq_sum"], tolerance)


@pytest.mark.parametrize("reduction", ["token_mean", "seq_sum", "seq_mean"])
def test_scst_beam_mean_two_images(reduction):
    inputs, expected, tolerance = vector("scst_beam_mean_two_images")
    logprobs, mask = double(inputs["token_logp"]).view(6, 4), double(inputs["mask"]).view(6, 4)
    captioner = GivenCaptioner(logprobs, mask, torch.arange(2).repeat_interleave(3))
    reward = given_reward(rewards_by_text(inputs["rewards"]))
    objective = SCST(captioner, reward, baseline="beam_mean", num_generations=3, reduction=reduction)
    loss, experience, _ = run(objective, images(2))
    close(experience.advantage.view(2, 3), expected["advantage"], tolerance)
    close(loss, expected[f"loss_{reduction}"], tolerance)


KL_CASES = [
    ("reward", "seq_sum", "loss_kl_in_reward_seq_sum", "grad_kl_in_reward_seq_sum"),
    ("reward", "token_mean", "loss_kl_in_reward_token_mean", None),
    ("loss", "token_mean", "loss_kl_in_loss_k3_token_mean", "grad_kl_in_loss_k3_token_mean"),
]


@pytest.mark.parametrize(("kl_in", "reduction", "loss_key", "grad_key"), KL_CASES)
def test_scst_kl_regularised(kl_in, reduction, loss_key, grad_key):
    inputs, expected, tolerance = vector("scst_kl_regularised")
    captioner = GivenCaptioner(
        double(inputs["logp"]), double(inputs["mask"]), torch.arange(2), double(inputs["ref_logp"])
    )
    table = rewards_by_text([[r] for r in inputs["reward"]])
    table |= {f"{b}/greedy": r for b, r in enumerate(inputs["greedy_reward"])}
    objective = SCST(
        captioner,
        given_reward(table),
        num_generations=1,
        reduction=reduction,
        kl_coef=inputs["kl_coef"],
        kl_in=kl_in,
    )
    loss, _, [output] = run(objective, images(2))
    assert captioner.scored == 1, "the loss's pass gives the KL term too"
    close(output.logs["kl"], expected["kl_k1_per_sequence"], tolerance)
    if kl_in == "reward":  # a first token's gradient is -advantage over the weight
        close(-captioner.logprobs.grad[:, 0] * float(output.weight), expected["advantage_kl_in_reward"], tolerance)
    close(loss, expected[loss_key], tolerance)
    if grad_key:
        close(captioner.logprobs.grad, expected[grad_key], tolerance)


def dico(policy, reference, rewards, inputs):
    """A DiCO step in which each caption is one token, so that sequence log-probabilities can be given."""
    count, beams = len(rewards), len(rewards[0])
    captioner = GivenCaptioner(
        double(policy).view(-1, 1),
        torch.ones(count * beams, 1),
        torch.arange(count).repeat_interleave(beams),
        double(reference).view(-1, 1),
    )
    reward = given_reward(rewards_by_text(rewards))
    objective = DiCO(captioner, reward, beta=inputs["beta"], tau=inputs["tau"], num_beams=beams)
    loss, experience, outputs = run(objective, images(count))
    return loss, experience, outputs, captioner.logprobs.grad.view(count, beams)


def test_dico_loss_k3():
    inputs, expected, tolerance = vector("dico_loss_k3")
    loss, experience, outputs, gradient = dico(
        inputs["policy_seq_logp"], inputs["ref_seq_logp"], inputs["rewards"], inputs
    )
    assert experience.winner.tolist() == expected["winner"]
    close(experience.loser_weights, expected["gamma"], tolerance)
    close(outputs[0].logs["margin"] * inputs["beta"], expected["z"], tolerance)
    close(outputs[0].logs["margin"], expected["implicit_reward_margin"], tolerance)
    close(loss, expected["loss"], tolerance)
    close(gradient, expected["grad_policy_logp"], tolerance)
    winner, gamma = classify(double(inputs["tie_rewards"]), inputs["tau"])
    assert winner.tolist() == expected["tie_winner"]
    close(gamma, expected["tie_gamma"], tolerance)


def test_dico_k2_equals_dpo():
    inputs, expected, tolerance = vector("dico_k2_equals_dpo")
    loss, *_ = dico(inputs["policy_seq_logp"], inputs["ref_seq_logp"], inputs["rewards"], inputs)
    close(loss, expected["loss"], tolerance)
    loss, *_ = dico(inputs["ref_seq_logp"], inputs["ref_seq_logp"], inputs["rewards"], inputs)
    close(loss, expected["loss_at_policy_eq_ref"], tolerance)


def test_dico_ignores_constants_in_rewards_and_log_ratios():
    # adding one constant to all rewards, or to all log-ratios of an image, cancels in gaps and in winner minus losers
    inputs, _, _ = vector("dico_loss_k3")
    before, *_ = dico(inputs["policy_seq_logp"], inputs["ref_seq_logp"], inputs["rewards"], inputs)
    rewards = [[r + 0.5 for r in row] for row in inputs["rewards"]]
    policy = [[p - 3.0 for p in row] for row in inputs["policy_seq_logp"]]
    after, *_ = dico(policy, inputs["ref_seq_logp"], rewards, inputs)
    assert after == pytest.approx(before, abs=1e-9)


def test_sequence_logprob_sums_real_tokens_only():
    logprobs = double([[-1.0, -2.0, -torch.inf], [-0.5, -9.0, -9.0]]).requires_grad_()
    mask = torch.tensor([[True, True, False], [True, False, False]])
    total = sequence_logprob(logprobs, mask)
    assert total.tolist() == [-3.0, -0.5]
    total.sum().backward()
    assert logprobs.grad.tolist() == [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
