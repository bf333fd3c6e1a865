"""Direct CLIP-based optimisation: the best of the captioner's own candidates against the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tellapart.captioners.base import Captioner, Encoded
from tellapart.objectives.common import rollout_logs, score
from tellapart.ops import sequence_logprob
from tellapart.ranges import AtLeastTwo, PositiveFloat, PositiveInt, in_range
from tellapart.types import Batch, Decoding, ObjectiveModule, Reward, Rollout, StepOutput


@dataclass(frozen=True)
class Experience:
    """k candidates of each of B images, image by image, with who wins and how much each loser counts.

    Args:
        rollout: ``B * k`` candidates.
        winner: ``[B]`` long, place of the winner among its image's candidates.
        loser_weights: ``[B, k]``, 0 at the winner, summing to 1.
        reference_logprob: ``[B, k]`` log-probability of each caption under the start model.
    """

    rollout: Rollout
    encoded: Encoded | None
    winner: Tensor
    loser_weights: Tensor
    reference_logprob: Tensor
    logs: dict[str, Tensor]


def classify(rewards: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """``(winner [B], loser_weights [B, k])`` from ``[B, k]`` rewards.

    The winner has the highest reward (the first on ties); a loser's weight is the softmax over losers of
    ``(r_winner - r_loser) / tau``, so the worse a candidate, the more it counts.
    """
    winner = rewards.argmax(dim=1)
    gap = (rewards.gather(1, winner[:, None]) - rewards) / tau
    return winner, gap.scatter(1, winner[:, None], -torch.inf).softmax(dim=1)


class DiCO(ObjectiveModule):
    """Direct CLIP-based optimisation (Moratelli, Caffagni, Cornia, Baraldi & Cucchiara, BMVC 2024).

    With ``delta_i = log p(c_i) - log p_ref(c_i)`` over whole captions (EOS included, no length normalisation),
    ``z = beta * (delta_winner - sum_losers weight * delta_loser)`` and ``L = -mean log sigmoid(z)`` over images. At the
    start model the loss is ln 2 whatever the rewards; with two candidates of different reward it is DPO (``dpo.py``), as it
    is with any number for ``tau`` towards 0. Candidates are all ``num_beams`` hypotheses of the current policy's beam search,
    drawn again in every step. ``effective_losers`` in the logs is ``1 / sum weight^2`` over the losers of an image: 1 when the
    worst takes all the weight, k - 1 when all count alike.

    Departures from the released code: dropout is off in policy and reference (there it is on in the policy only, so
    delta starts away from 0); candidates are drawn without gradients; the reward is whatever is given, so CLIP-S with
    prefix and clamp where the code uses an unclamped cosine times 2. ``tau`` acts on the scaled reward. The equations
    follow the released code: of the paper only the abstract was at hand.

    Args:
        captioner: the model to train.
        reward: scores candidates; higher is better.
        beta: strength of the tie to the start model: the implicit reward is ``beta * delta``.
        tau: temperature of the losers' weights, in units of the reward.
        num_beams: candidates of each image, at least 2.
        max_new_tokens: longest candidate in tokens, its EOS included.

    Raises:
        ValueError: a number is outside its range.
    """

    shards = True

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        *,
        beta: PositiveFloat = 0.2,
        tau: PositiveFloat = 1 / 300,
        num_beams: AtLeastTwo = 5,
        max_new_tokens: PositiveInt = 30,
    ) -> None:
        super().__init__()
        self.captioner, self.reward, self.beta, self.tau = captioner, reward, beta, tau
        self.reference = captioner.reference()
        self.decoding = Decoding(num_beams=num_beams, num_return_sequences=num_beams, max_new_tokens=max_new_tokens)

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw the beams, find winners and losers, score them under the start model."""
        encoded = self.captioner.encode(batch)
        rollout = self.captioner.generate(batch, self.decoding, encoded=encoded)
        rewards, logs = score(self.reward, rollout)
        winner, loser_weights = self.classified(rewards.view(len(batch), -1))
        reference = self.reference(rollout, encoded=encoded).logprobs
        reference_logprob = sequence_logprob(reference, rollout.mask).view_as(loser_weights)
        logs |= rollout_logs(rollout, rewards) | {"effective_losers": 1 / loser_weights.square().sum(dim=1)}
        return Experience(rollout, self.captioner.reusable(encoded), winner, loser_weights, reference_logprob, logs)

    def classified(self, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """``(winner [B], loser_weights [B, k])`` from ``[B, k]`` rewards."""
        return classify(rewards, self.tau)

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """One piece: the winner-against-losers classification."""
        rollout, winner = experience.rollout, experience.winner[:, None]
        logprobs = self.captioner(rollout, encoded=experience.encoded).logprobs
        logprob = sequence_logprob(logprobs, rollout.mask).view_as(experience.loser_weights)
        delta = logprob - experience.reference_logprob
        losers = (experience.loser_weights.to(delta.dtype) * delta).sum(dim=1)
        margin = delta.gather(1, winner).squeeze(1) - losers
        loss = -functional.logsigmoid(self.beta * margin)
        logs = {"margin": margin.detach(), "accuracy": (margin > 0).to(margin.dtype), "kl": delta.detach()}
        logs |= experience.logs
        yield StepOutput(loss.sum(), loss.new_tensor(float(len(loss))), logs)
