"""Group relative policy optimisation: advantages normalised among the captions of one image, ratios clipped, KL in the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.objectives.common import rollout_logs, score
from tellapart.ops import Reduction, group_mean, group_std, kl_k3, masked, reduce, sequence_logprob
from tellapart.ranges import AtLeastTwo, NonNegativeFloat, PositiveFloat, PositiveInt, in_range
from tellapart.types import Batch, Decoding, ObjectiveModule, Reward, Rollout, StepOutput

REDUCTIONS: dict[str, Reduction] = {"seq_mean": "seq_mean", "token_mean": "token_mean", "constant": "seq_sum"}
"""Choice -> what sums the tokens; ``constant`` then divides by the longest length."""

STD_EPS = 1e-4
"""Added to a group's standard deviation, as TRL does."""


@dataclass(frozen=True)
class Experience:
    """Drawn captions with ``[N]`` advantages, and ``[N, T]`` log-probabilities under the policy that drew them and under the
    start model (none without a KL term)."""

    rollout: Rollout
    encoded: Encoded | None
    advantage: Tensor
    old_logprobs: Tensor
    reference_logprobs: Tensor | None
    logs: dict[str, Tensor]


class GRPO(ObjectiveModule):
    """Group relative policy optimisation (DeepSeekMath: Shao et al., 2024, section 4.1, equations 3 and 4).

    ``A = (r - mean) / (std + 1e-4)`` among the captions of an image (unbiased deviation), ``q = p / p_old`` per token, and the
    loss of a token ``-min(q A, clip(q, 1 - eps, 1 + eps) A) + kl_coef * k3``, k3 being Schulman's estimate of the KL divergence
    from the start model. A rollout is used for ``num_iterations`` updates (the paper's mu, TRL's name), each over the whole
    batch: at the first one q is 1 and clips nothing unless dropout is on in the update. A step logs means over its updates.

    Dr. GRPO (Liu et al., 2025) is ``scale_rewards=False, reduction="constant"``: neither the deviation nor the length divides.

    Departures: rewards are of whole captions, without the paper's process supervision; the reference stays the start model, where
    the paper renews it.

    Args:
        captioner: the model to train.
        reward: scores captions; higher is better.
        num_generations: captions drawn for each image, at least 2.
        max_new_tokens: longest caption in tokens, its EOS included.
        temperature: sampling temperature; log-probabilities are those of the raw distribution.
        scale_rewards: divide advantages by the deviation among an image's captions.
        reduction: ``seq_mean`` (the paper), ``token_mean`` (DAPO, Yu et al., 2025), or ``constant``: the sum over tokens by
            ``max_new_tokens``, whatever the caption's length (Dr. GRPO).
        num_iterations: optimiser updates per rollout; 1, as in the paper's experiments, is on-policy.
        clip_eps: eps; how far a ratio may move from 1.
        kl_coef: weight of the KL term towards the start model; 0 keeps no start model in memory.

    Raises:
        ValueError: a choice is unknown, a number is negative, or fewer than two captions are asked for.
    """

    averages_turns = True
    shards = True

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        *,
        num_generations: AtLeastTwo = 5,
        max_new_tokens: PositiveInt = 40,
        temperature: PositiveFloat = 1.0,
        scale_rewards: bool = True,
        reduction: Literal["seq_mean", "token_mean", "constant"] = "seq_mean",
        num_iterations: PositiveInt = 1,
        clip_eps: NonNegativeFloat = 0.2,
        kl_coef: NonNegativeFloat = 0.04,
    ) -> None:
        super().__init__()
        self.captioner, self.reward, self.turns = captioner, reward, num_iterations
        self.scale_rewards, self.reduction, self.clip_eps, self.kl_coef = scale_rewards, reduction, clip_eps, kl_coef
        self.reference = captioner.reference() if kl_coef else None
        self.decoding = Decoding(
            num_return_sequences=num_generations,
            do_sample=True,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
        )

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw captions, score them, normalise within each image."""
        encoded = self.captioner.encode(batch)
        rollout = self.captioner.generate(batch, self.decoding, encoded=encoded)
        rewards, logs = score(self.reward, rollout)
        logs |= rollout_logs(rollout, rewards)
        old_logprobs, reference_logprobs = self.captioner(rollout, encoded=encoded).logprobs.detach(), None
        if self.reference is not None:
            reference_logprobs = self.reference(rollout, encoded=encoded).logprobs
            logs["kl"] = sequence_logprob(old_logprobs - reference_logprobs, rollout.mask)
        advantage = rewards - group_mean(rewards, rollout.image)
        if self.scale_rewards:
            advantage = advantage / (group_std(rewards, rollout.image) + STD_EPS)
        reusable = self.captioner.reusable(encoded)
        return Experience(rollout, reusable, advantage, old_logprobs, reference_logprobs, logs)

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """One piece: the clipped surrogate, with the k3 penalty."""
        rollout = experience.rollout
        logprobs = self.captioner(rollout, encoded=experience.encoded).logprobs
        advantage = experience.advantage[:, None].to(logprobs.dtype)
        ratio = masked(logprobs - experience.old_logprobs, rollout.mask).exp()
        bounded = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * advantage
        values = -(ratio * advantage).minimum(bounded)
        clipped = (bounded < ratio * advantage).detach()
        if experience.reference_logprobs is not None:
            values = values + self.kl_coef * kl_k3(logprobs, experience.reference_logprobs, rollout.mask)
        loss, weight = reduce(values, rollout.mask, REDUCTIONS[self.reduction])
        if self.reduction == "constant":
            weight = weight * self.decoding.max_new_tokens
        share = masked(clipped.to(logprobs.dtype), rollout.mask).sum(dim=1) / rollout.lengths.clamp(min=1)
        yield StepOutput(loss, weight, experience.logs | {"clip_ratio": share})
