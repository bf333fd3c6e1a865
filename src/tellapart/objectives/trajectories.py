"""Captions weighted by their own reward, together with a learning discriminator: shared by WTF-RL and its baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.draws import base_seed
from tellapart.listeners.remember import RememberingTexts
from tellapart.objectives.discriminator import read_one_reference
from tellapart.ops import Reduction, reduce
from tellapart.ranges import UnitFloat, in_range
from tellapart.types import Batch, Decoding, Gather, LearnedReward, Listener, ObjectiveModule, Rollout, StepOutput

Draw = Literal["beam", "sample"]
ScoreTime = Literal["pre_update", "post_update"]

POLICY, REFERENCE, GREEDY, DISCRIMINATOR = "policy", "reference", "greedy", "discriminator"
_PREFIX = {POLICY: "", REFERENCE: "reference/"}


@dataclass(frozen=True)
class Experience:
    """The captions of a micro-batch, by kind, and their rewards.

    Args:
        rollouts: ``policy``, ``reference`` and ``greedy``, those that there are.
        encoded: the images for the captioner, if they stay valid.
        parts: kind -> name -> ``[N]``, reward parts as applied; they sum to the reward.
        embeddings: name -> rows that are compared over the whole step.
        advantages: kind -> ``[N]``, what the log-probabilities are weighted by.
        learning: what this turn learns: kinds of captions, ``discriminator``.
        scales: name of what is learned -> factor that gives its loss the divisor of the first.
    """

    rollouts: dict[str, Rollout]
    encoded: Encoded | None
    parts: dict[str, dict[str, Tensor]]
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    advantages: dict[str, Tensor] = field(default_factory=dict)
    learning: tuple[str, ...] = ()
    scales: dict[str, float] = field(default_factory=dict)


class WeightedTrajectories(ObjectiveModule):
    """``L = sum over kinds of -mean_b [r(x_b) log p(x_b)] + mean BCE of the discriminator``, rewards without gradient.

    Each mean is over the effective batch, whatever the others count. A subclass draws in ``collect``, and completes the
    reward parts in ``compared``. With ``post_update`` a step takes two turns: the discriminator learns, then scores.

    Attributes:
        rewarded: the kinds of captions that have a reward.
    """

    rewarded: tuple[str, ...] = (POLICY, REFERENCE)
    shards = True

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        listener: Listener,
        discriminator: LearnedReward | None,
        *,
        trajectories: Sequence[str],
        alpha: UnitFloat = 1.0,
        discriminator_score: ScoreTime = "pre_update",
        reduction: Reduction,
        center_policy_reward: bool = False,
        clamp_reference_reward: bool = False,
    ) -> None:
        super().__init__()
        if not trajectories or set(trajectories) - {POLICY, REFERENCE}:
            raise ValueError(f"trajectories={tuple(trajectories)} must be policy, reference or both")
        for name, wanted, kind in (
            ("clamp_reference_reward", clamp_reference_reward, REFERENCE),
            ("center_policy_reward", center_policy_reward, POLICY),
        ):
            if wanted and kind not in trajectories:
                raise ValueError(f"{name} changes rewards of {kind} captions, which are not learned from: leave it out")
        self.captioner, self.discriminator = captioner, discriminator
        self.listener = RememberingTexts.around(listener)
        self.trajectories, self.reduction = tuple(trajectories), reduction
        self.alpha = alpha if discriminator is not None else 1.0
        self.center_policy_reward, self.clamp_reference_reward = center_policy_reward, clamp_reference_reward
        self.turns = 2 if discriminator is not None and discriminator_score == "post_update" else 1

    def begin(self, step: int) -> None:
        """To be called first in ``collect``: what the listener remembers must not depend on earlier steps."""
        self.listener.begin(step)

    def judged(self, rollouts: Mapping[str, Rollout]) -> dict[str, dict[str, Tensor]]:
        """``{kind: {"discriminator": (1 - alpha) * P_D}}`` of the captions that have a reward."""
        if self.discriminator is None:
            return {}
        score, share = self.discriminator, 1 - self.alpha
        return {kind: {DISCRIMINATOR: share * score(rollouts[kind]).detach()} for kind in self.rewarded}

    def scored_at_once(self, rollouts: Mapping[str, Rollout]) -> dict[str, dict[str, Tensor]]:
        """``judged`` while drawing, if the reward is that of the discriminator before it learns; else nothing."""
        return self.judged(rollouts) if self.turns == 1 else {}

    def compared(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """The experiences with the reward parts that need the whole effective batch; here there are none."""
        return experiences

    def prepare(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """Rewards over the effective batch; in the first of two turns only what the discriminator learns from."""
        learners = () if self.discriminator is None else (DISCRIMINATOR,)
        if self.turns == 2 and not experiences[0].learning:
            return self._scaled([replace(experience, learning=learners) for experience in experiences], gather)
        learning = self.trajectories + (learners if self.turns == 1 else ())
        if self.turns == 2:
            experiences = [replace(e, parts=joined(e.parts, self.judged(e.rollouts))) for e in experiences]
        compared = self.compared(experiences, gather)
        rewards = [{kind: total(parts) for kind, parts in e.parts.items()} for e in compared]
        if self.center_policy_reward:
            mean = gather(torch.cat([reward[POLICY] for reward in rewards])).double().mean()
            rewards = [reward | {POLICY: (reward[POLICY] - mean).to(reward[POLICY])} for reward in rewards]
        if self.clamp_reference_reward:
            rewards = [reward | {REFERENCE: reward[REFERENCE].clamp(min=0)} for reward in rewards]
        done = [replace(e, advantages=r, learning=learning) for e, r in zip(compared, rewards, strict=True)]
        return self._scaled(done, gather)

    def _scaled(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """With the factors that make every piece a mean over the effective batch (see ``StepOutput``)."""
        learning = experiences[0].learning
        counts = torch.stack([torch.tensor([self._weight(e, name) for name in learning]) for e in experiences])
        totals = gather(counts).double().sum(dim=0).tolist()
        divisor = 1.0 if learning[0] == DISCRIMINATOR else totals[0]
        scales = {name: divisor / total if total else 0.0 for name, total in zip(learning, totals, strict=True)}
        return [replace(experience, scales=scales) for experience in experiences]

    def _weight(self, experience: Experience, name: str) -> float:
        if name == DISCRIMINATOR:
            return float(len(experience.rollouts[REFERENCE]) + len(experience.rollouts[POLICY]))
        mask = experience.rollouts[name].mask
        return float(reduce(mask.float(), mask, self.reduction)[1])

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """One piece a kind of captions, and one of the discriminator."""
        for name in experience.learning:
            scale = experience.scales[name]
            if name == DISCRIMINATOR:
                yield self._discriminator_loss(experience, scale)
                continue
            rollout = experience.rollouts[name]
            logprobs = self.captioner(rollout, encoded=experience.encoded).logprobs
            advantage = experience.advantages[name].to(logprobs.device, logprobs.dtype)
            loss, weight = reduce(-advantage[:, None] * logprobs, rollout.mask, self.reduction)
            first = name == experience.learning[0]
            yield StepOutput(loss * scale, weight if first else weight * 0, _logs(experience) if first else {})

    def _discriminator_loss(self, experience: Experience, scale: float) -> StepOutput:
        assert self.discriminator is not None
        loss, logs = self.discriminator.loss(experience.rollouts[REFERENCE], experience.rollouts[POLICY])
        return StepOutput(loss.sum() * scale, loss.new_zeros(()), logs)


def total(parts: Mapping[str, Tensor]) -> Tensor:
    """``[N]``, the sum of the parts."""
    return torch.stack(list(parts.values())).sum(dim=0)


def joined(*tables: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Kind -> name -> values, of all tables."""
    kinds = dict.fromkeys(kind for table in tables for kind in table)
    return {kind: {name: part for table in tables for name, part in table.get(kind, {}).items()} for kind in kinds}


def _logs(experience: Experience) -> dict[str, Tensor]:
    """Rewards and their parts as applied, of drawn and human captions apart, and the figures of the drawn ones."""
    logs: dict[str, Tensor] = {}
    for kind, parts in experience.parts.items():
        logs[f"{_PREFIX[kind]}reward"] = total(parts)
        logs |= {f"{_PREFIX[kind]}rewards/{name}": values for name, values in parts.items()}
    rollout = experience.rollouts[POLICY]
    logs["completions/mean_length"] = rollout.lengths.float()
    logs["completions/clipped_ratio"] = (~rollout.finished).float()
    if rollout.dtype_difference is not None:
        logs["rollout_dtype_difference"] = rollout.dtype_difference
    return logs


def policy_decoding(draw: Draw, num_beams: int, no_repeat_ngram_size: int, max_new_tokens: int) -> Decoding:
    """How the policy's one caption per image is drawn: the best beam (released code), or a sample of the raw distribution."""
    if draw == "sample":
        return Decoding(do_sample=True, max_new_tokens=max_new_tokens)
    return Decoding(num_beams=num_beams, no_repeat_ngram_size=no_repeat_ngram_size, max_new_tokens=max_new_tokens)


def drawn_references(captioner: Captioner, batch: Batch) -> Rollout:
    """One human caption of each image; which one follows from image id and seed.

    Raises:
        UsageError: an image has none.
    """
    return read_one_reference(batch, captioner.tokenize, base_seed())
