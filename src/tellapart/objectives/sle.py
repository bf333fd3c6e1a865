"""Sequence-level exploration (SLE) and the paper's baselines: SLL and maximum entropy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from tellapart.captioners.base import Captioner
from tellapart.objectives.scst import SCST, Experience
from tellapart.ops import Reduction, reduce
from tellapart.ranges import AtLeastTwo, NonNegativeFloat, PositiveInt, UnitFloat, in_range
from tellapart.rewards.distances import Distance, bleu_distance
from tellapart.types import Batch, Reward, StepOutput


class SLL(SCST):
    """Sequence-level learning: self-critical training with s samples per image and the greedy caption as baseline.

    The comparator of SLE (Chen & Jin, CVPR 2020, section 4.2), with CIDEr as its reward; the same as ``scst`` with
    ``baseline=greedy``, under the paper's name.

    Args:
        captioner: the model to train.
        reward: scores captions; the paper's is CIDEr.
        num_generations: captions sampled for each image, s.
        max_new_tokens: longest caption in tokens, its EOS included.
        reduction: how token terms are averaged; the paper's formula is ``seq_sum``, its author's code ``token_mean``.
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        *,
        num_generations: PositiveInt = 5,
        max_new_tokens: PositiveInt = 40,
        reduction: Reduction = "token_mean",
    ) -> None:
        super().__init__(
            captioner,
            reward,
            baseline="greedy",
            num_generations=num_generations,
            max_new_tokens=max_new_tokens,
            reduction=reduction,
        )


class SLLME(SLL):
    """SLL with a maximum-entropy term, ``L = L_SLL - entropy_coef * H`` (Chen & Jin 2020, section 4.2).

    H is the entropy of the next-word distribution after each sampled prefix, in nats, with gradient; like the rest of the
    loss it is averaged by ``reduction`` (with ``token_mean``, the default: over all valid tokens, as published).

    Args:
        captioner: the model to train.
        reward: scores captions; the paper's is CIDEr.
        entropy_coef: weight of the term; the paper searched 0.1 to 0.001.
        num_generations: captions sampled for each image, s.
        max_new_tokens: longest caption in tokens, its EOS included.
        reduction: how token terms are averaged.

    Raises:
        ValueError: a number is outside its range.
    """

    reads_drawing = False  # entropies are wanted, too

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        *,
        entropy_coef: NonNegativeFloat = 0.01,
        num_generations: PositiveInt = 5,
        max_new_tokens: PositiveInt = 40,
        reduction: Reduction = "token_mean",
    ) -> None:
        super().__init__(
            captioner,
            reward,
            num_generations=num_generations,
            max_new_tokens=max_new_tokens,
            reduction=reduction,
        )
        self.entropy_coef = entropy_coef

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """One piece: the score-function loss less the weighted entropy."""
        rollout = experience.rollout
        scores = self.captioner(rollout, encoded=experience.encoded, want=("entropy",))
        assert scores.entropy is not None, "asked for"
        values = -experience.advantage[:, None].to(scores.logprobs.dtype) * scores.logprobs
        loss, weight = reduce(values - self.entropy_coef * scores.entropy, rollout.mask, self.reduction)
        entropy = scores.entropy.detach()[rollout.mask]
        yield StepOutput(loss, weight, experience.logs | {"entropy": entropy})


class SLE(SLL):
    """Sequence-level exploration (Chen & Jin, CVPR 2020): quality and the distances among an image's samples together.

    Maximises ``alpha E[reward] + (1 - alpha) E[d(y, y')]`` by REINFORCE (equations 14 to 16). For sample j,
    ``coef_j = alpha (r_j - r_greedy) + (1 - alpha) (2/s) sum_k (d_jk - b)``, ``b`` the mean of the image's s x s distances,
    diagonal included; ``L = -mean(coef_j log p_j)``.

    Departures: the paper gives neither how BLEU-3 + BLEU-4 becomes a distance (here one minus each, both directions
    averaged, since the factor 2 of equation 14 assumes symmetry), nor where its baseline goes (here one for the pairs of
    an image, which depends on the samples: a slight bias), nor the scale of CIDEr (here 0 to 10), nor the reduction
    (``token_mean`` is the author's code for another system, ``seq_sum`` the formula).

    Args:
        captioner: the model to train.
        reward: scores captions; the paper's is CIDEr.
        distance: between the captions of an image, ``rollout -> [B, s, s]``; see ``tellapart.rewards.distances``.
        alpha: weight of the reward; 1 is SLL.
        num_generations: captions sampled for each image, s.
        max_new_tokens: longest caption in tokens, its EOS included.
        reduction: how token terms are averaged.

    Raises:
        ValueError: a number is outside its range.
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        distance: Distance = bleu_distance,
        *,
        alpha: UnitFloat = 0.75,
        num_generations: AtLeastTwo = 5,
        max_new_tokens: PositiveInt = 40,
        reduction: Reduction = "token_mean",
    ) -> None:
        super().__init__(
            captioner,
            reward,
            num_generations=num_generations,
            max_new_tokens=max_new_tokens,
            reduction=reduction,
        )
        self.alpha, self.distance = alpha, distance

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw captions, score them against the greedy one, and compare those of an image with one another."""
        experience = super().collect(batch, step)
        distances = self.distance(experience.rollout).to(experience.advantage.dtype)
        explored = pair_advantage(distances).reshape(-1)
        advantage = self.alpha * experience.advantage + (1 - self.alpha) * explored
        logs = experience.logs | {"distance": distances.mean(dim=(1, 2))}
        return replace(experience, advantage=advantage, logs=logs)


def pair_advantage(distances: Tensor) -> Tensor:
    """``[B, s]`` from ``[B, s, s]``: ``(2/s) sum_k (d_jk - b)`` with the image's mean distance b; it sums to 0."""
    return 2 * (distances.mean(dim=2) - distances.mean(dim=(1, 2))[:, None])
