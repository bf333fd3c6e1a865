"""DPO, RLOO and GRPO: their vectors through the classes, and what they share with dico and scst."""

import math
from importlib import import_module

import pytest
import torch

from given import GivenCaptioner, double, given_reward, images, rewards_by_text, run, vector
from tellapart.objectives import METHODS
from tellapart.objectives.dico import DiCO
from tellapart.objectives.dpo import DPO, best_and_worst
from tellapart.objectives.grpo import GRPO
from tellapart.objectives.scst import SCST


def close(actual, expected, tolerance):
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), double(expected), atol=tolerance, rtol=0.0)


def one_token_each(policy, reference):
    """A captioner whose captions are one token, so that ``[B, k]`` log-probabilities of whole captions can be given."""
    count, candidates = len(policy), len(policy[0])
    return GivenCaptioner(
        double(policy).view(-1, 1),
        torch.ones(count * candidates, 1),
        torch.arange(count).repeat_interleave(candidates),
        double(reference).view(-1, 1),
    )


def pair_captioner(inputs):
    """Chosen and rejected captions of each image side by side, padded with the vector's junk to one width."""
    columns = {}
    for name in ("policy_logp", "ref_logp", "mask"):
        rows = []
        for chosen, rejected in zip(inputs[f"{name}_chosen"], inputs[f"{name}_rejected"], strict=True):
            width = len(chosen)
            rows += [chosen, rejected + [0.0 if name == "mask" else -9.0] * (width - len(rejected))]
        columns[name] = double(rows)
    image = torch.arange(len(columns["mask"]) // 2).repeat_interleave(2)
    return GivenCaptioner(columns["policy_logp"], columns["mask"], image, columns["ref_logp"])


def test_dpo_pairs():
    inputs, expected, tolerance = vector("dpo_pairs")
    captioner = pair_captioner(inputs)
    reward = given_reward(rewards_by_text([[1.0, 0.0], [1.0, 0.0]]))
    objective = DPO(captioner, reward, beta=inputs["beta"], num_generations=2)
    loss, _, [output] = run(objective, images(2))
    close(loss, expected["loss"], tolerance)
    close(inputs["beta"] * output.logs["margin"], expected["margin"], tolerance)
    assert float(output.logs["accuracy"].mean()) == expected["accuracy"]
    # every real token of a caption has the gradient of the caption's log-probability, junk none
    mask = captioner.given_mask
    sequence = torch.stack([double(expected[f"grad_{side}_seq_logp"]) for side in ("chosen", "rejected")], dim=1)
    close(captioner.logprobs.grad, (mask * sequence.view(-1, 1)).tolist(), tolerance)


def test_dpo_is_dico_with_two_candidates():
    inputs, expected, tolerance = vector("dico_k2_equals_dpo")
    captioner = one_token_each(inputs["policy_seq_logp"], inputs["ref_seq_logp"])
    reward = given_reward(rewards_by_text(inputs["rewards"]))
    loss, *_ = run(DPO(captioner, reward, beta=inputs["beta"], num_generations=2), images(1))
    close(loss, expected["loss"], tolerance)
    same = one_token_each(inputs["ref_seq_logp"], inputs["ref_seq_logp"])
    loss, *_ = run(DPO(same, reward, beta=inputs["beta"], num_generations=2), images(1))
    close(loss, expected["loss_at_policy_eq_ref"], tolerance)


def test_dpo_is_the_limit_of_dico_for_small_tau():
    inputs, _, _ = vector("dico_loss_k3")
    reward = given_reward(rewards_by_text(inputs["rewards"]))
    found = {}
    for name, make in {
        "dpo": lambda c: DPO(c, reward, beta=0.2, num_generations=3),
        "dico": lambda c: DiCO(c, reward, beta=0.2, tau=1e-5, num_beams=3),
        "dico, published tau": lambda c: DiCO(c, reward, beta=0.2, tau=1 / 300, num_beams=3),
    }.items():
        captioner = one_token_each(inputs["policy_seq_logp"], inputs["ref_seq_logp"])
        found[name] = (run(make(captioner), images(2))[0], captioner.logprobs.grad)
    assert found["dpo"][0] == pytest.approx(found["dico"][0], abs=1e-12)
    torch.testing.assert_close(found["dpo"][1], found["dico"][1])
    assert found["dpo"][0] != pytest.approx(found["dico, published tau"][0], abs=1e-4)


def test_captions_of_equal_reward_prefer_nothing():
    best, weights = best_and_worst(double([[0.5, 0.9, 0.1], [0.3, 0.3, 0.3]]))
    assert best.tolist() == [1, 0]
    assert weights.tolist() == [[0, 0, 1], [1, 0, 0]]
    captioner = one_token_each([[-1.0, -2.0, -3.0]], [[-2.0, -2.0, -2.0]])
    loss, *_ = run(DPO(captioner, given_reward(rewards_by_text([[0.3] * 3])), num_generations=3), images(1))
    assert loss == pytest.approx(math.log(2), abs=1e-12)
    assert not captioner.logprobs.grad.any()


def test_dpo_draws_beams_as_dico_does_or_samples():
    captioner = one_token_each([[-1.0, -2.0]], [[-1.0, -2.0]])
    reward = given_reward({})
    options = {"num_generations": 4, "max_new_tokens": 9}
    assert DPO(captioner, reward, **options).decoding == DiCO(captioner, reward, num_beams=4, max_new_tokens=9).decoding
    sampled = DPO(captioner, reward, draw="sample", **options).decoding
    assert (sampled.do_sample, sampled.num_beams, sampled.num_return_sequences, sampled.max_new_tokens) == (
        True,
        1,
        4,
        9,
    )


def rloo(captioner, reward, **options):
    """The method as the command line builds it."""
    method = METHODS["rloo"]
    module, _, name = method.target.partition(":")
    return getattr(import_module(module), name)(captioner, reward, **method.fixed, **options)


def by_place(rewards, image):
    """Rewards in the flat order of the captions, under the texts the captioner draws."""
    seen: dict[int, int] = {}
    table = {}
    for b, value in zip(image, rewards, strict=True):
        table[f"{b}/{seen.setdefault(b, 0)}"] = value
        seen[b] += 1
    return table


def test_rloo_on_groups_of_unequal_size():
    inputs, expected, tolerance = vector("group_advantages_flat")
    captioner = GivenCaptioner(double(inputs["seq_logp"])[:, None], torch.ones(9, 1), torch.tensor(inputs["image"]))
    reward = given_reward(by_place(inputs["rewards"], inputs["image"]))
    loss, experience, _ = run(rloo(captioner, reward), images(3))
    close(experience.advantage, expected["adv_loo"], tolerance)
    close(loss, expected["loss_rloo_seq_sum"], tolerance)
    close(captioner.logprobs.grad[:, 0], expected["grad_rloo_seq_logp"], tolerance)


def test_rloo_takes_the_kl_off_the_reward_before_the_others_are_averaged():
    # k1 of the captions is 0.6 and 0.4 (vector scst_kl_regularised); rewards 1.2 - 0.06 and 0.5 - 0.04, each minus the other
    inputs, expected, tolerance = vector("scst_kl_regularised")
    captioner = GivenCaptioner(
        double(inputs["logp"]), double(inputs["mask"]), torch.zeros(2, dtype=torch.long), double(inputs["ref_logp"])
    )
    reward = given_reward(rewards_by_text([inputs["reward"]]))
    loss, _, [output] = run(rloo(captioner, reward, num_generations=2, kl_coef=inputs["kl_coef"]), images(1))
    close(output.logs["kl"], expected["kl_k1_per_sequence"], tolerance)
    close(-captioner.logprobs.grad[:, 0] * float(output.weight), [1.14 - 0.46, 0.46 - 1.14], tolerance)
    # whole captions of log-probability -1.7 and -1.1, whatever their length: -(0.68 * -1.7 - 0.68 * -1.1) / 2
    close(loss, 0.204, tolerance)


def test_grpo_advantages_on_groups_of_unequal_size():
    inputs, expected, tolerance = vector("group_advantages_flat")
    reward = given_reward(by_place(inputs["rewards"], inputs["image"]))
    for scale, key in ((True, "adv_grpo"), (False, "adv_mean")):
        captioner = GivenCaptioner(double(inputs["seq_logp"])[:, None], torch.ones(9, 1), torch.tensor(inputs["image"]))
        _, experience, _ = run(GRPO(captioner, reward, kl_coef=0.0, scale_rewards=scale), images(3))
        close(experience.advantage, expected[key], tolerance)
        assert experience.reference_logprobs is None


class MovedCaptioner(GivenCaptioner):
    """Its captions were drawn by an older policy."""

    older: torch.Tensor

    def forward(self, rollout, *, encoded=None, want=()):
        found = super().forward(rollout, encoded=encoded, want=want)
        return found if torch.is_grad_enabled() else type(found)(self.older)


@pytest.mark.parametrize(
    ("reduction", "key"),
    [("seq_mean", "grpo"), ("token_mean", "bnpo"), ("constant", "dr_grpo_on_these_advantages")],
)
def test_grpo_clipped_loss(reduction, key):
    inputs, expected, tolerance = vector("grpo_clipped_loss")
    mask = double(inputs["mask"])
    captioner = MovedCaptioner(double(inputs["logp"]), mask, torch.tensor(inputs["image"]), double(inputs["ref_logp"]))
    captioner.older = double(inputs["old_logp"])
    objective = GRPO(
        captioner,
        given_reward(by_place(inputs["rewards"], inputs["image"])),
        num_generations=2,
        max_new_tokens=inputs["max_new_tokens"],
        reduction=reduction,
        clip_eps=inputs["clip_eps"],
        kl_coef=inputs["beta"],
    )
    loss, experience, [output] = run(objective, images(2))
    close(experience.advantage, expected["advantage"], tolerance)
    close(output.logs["clip_ratio"], (double(expected["clipped"]).sum(1) / mask.sum(1)).tolist(), tolerance)
    close(loss, expected[f"loss_{key}"], tolerance)
    if key == "grpo":
        close(captioner.logprobs.grad, expected["grad_logp_grpo"], tolerance)


def test_one_update_of_grpo_is_scst_with_the_mean_of_the_group():
    """At ratio 1 nothing is clipped, and the gradient is that of the score function."""
    inputs, _, _ = vector("scst_beam_mean_two_images")
    found = []
    for make in (
        lambda c, r: GRPO(c, r, kl_coef=0.0, scale_rewards=False, num_generations=3),
        lambda c, r: SCST(c, r, baseline="beam_mean", reduction="seq_mean", num_generations=3),
    ):
        logprobs, mask = double(inputs["token_logp"]).view(6, 4), double(inputs["mask"]).view(6, 4)
        captioner = GivenCaptioner(logprobs, mask, torch.arange(2).repeat_interleave(3))
        _, _, [output] = run(make(captioner, given_reward(rewards_by_text(inputs["rewards"]))), images(2))
        assert not output.logs.get("clip_ratio", torch.zeros(1)).any()
        found.append(captioner.logprobs.grad)
    torch.testing.assert_close(*found)
    assert found[0].any()


@pytest.mark.parametrize(
    "build",
    [
        lambda c, r: DPO(c, r, draw="greedy"),
        lambda c, r: DPO(c, r, num_generations=1),
        lambda c, r: DPO(c, r, beta=0.0),
        lambda c, r: GRPO(c, r, num_generations=1),
        lambda c, r: GRPO(c, r, clip_eps=-0.1),
        lambda c, r: GRPO(c, r, kl_coef=-0.1),
        lambda c, r: GRPO(c, r, reduction="seq_sum"),
        lambda c, r: rloo(c, r, num_generations=1),
    ],
)
def test_impossible_settings_are_refused(build):
    captioner = one_token_each([[-1.0, -2.0]], [[-1.0, -2.0]])
    with pytest.raises(ValueError, match=r"must|compares"):
        build(captioner, given_reward({}))
