"""Direct preference optimisation, online: the best of the captioner's own candidates against the worst."""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner
from tellapart.objectives.dico import DiCO
from tellapart.objectives.trajectories import Draw
from tellapart.ranges import AtLeastTwo, PositiveFloat, PositiveInt, in_range
from tellapart.types import Decoding, Reward


def best_and_worst(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """``(best [B], weights [B, k])`` from ``[B, k]`` rewards: all weight on the worst, the first of several equals.

    Where all rewards are equal, the weight is on the best itself: such an image prefers nothing, and its gradient is 0.
    """
    worst = torch.zeros_like(rewards).scatter(1, rewards.argmin(dim=1, keepdim=True), 1.0)
    return rewards.argmax(dim=1), worst


class DPO(DiCO):
    """Direct preference optimisation (Rafailov, Sharma, Mitchell, Manning, Ermon & Finn, NeurIPS 2023, equation 7) on pairs
    that a reward makes: the best and the worst of the captions drawn for an image.

    ``L = -mean log sigmoid(beta * (delta_best - delta_worst))`` with ``delta = log p(c) - log p_ref(c)`` over whole captions (EOS
    included, no length normalisation). This is ``DiCO`` with all the losers' weight on the worst: the same with two
    candidates of different reward, and its limit for ``tau`` towards 0 with more. All else is shared with it.

    Departures: the paper learns from a fixed set of pairs that people compared; here candidates are drawn from the current
    captioner at every step and a reward compares them (online DPO: Guo et al., 2024). Dropout is off in policy and reference.
    Beams, the default so that ``dpo`` and ``dico`` see the same candidates, are not samples of the policy.

    Args:
        captioner: the model to train.
        reward: scores candidates; higher is better.
        beta: strength of the tie to the start model: the implicit reward is ``beta * delta``.
        draw: ``beam`` (all hypotheses of a beam search) or ``sample`` (of the raw distribution).
        num_generations: candidates of each image, at least 2.
        max_new_tokens: longest candidate in tokens, its EOS included.

    Raises:
        ValueError: a number is outside its range, or ``draw`` is unknown.
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        *,
        beta: PositiveFloat = 0.1,
        draw: Draw = "beam",
        num_generations: AtLeastTwo = 5,
        max_new_tokens: PositiveInt = 30,
    ) -> None:
        super().__init__(captioner, reward, beta=beta, num_beams=num_generations, max_new_tokens=max_new_tokens)
        if draw == "sample":
            self.decoding = Decoding(
                num_return_sequences=num_generations, do_sample=True, max_new_tokens=max_new_tokens
            )

    def classified(self, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """``(best [B], weights [B, k])``, 1 at the worst and 0 elsewhere."""
        return best_and_worst(rewards)
