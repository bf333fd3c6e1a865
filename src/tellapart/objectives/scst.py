"""Self-critical sequence training and its relatives: REINFORCE with a baseline that needs no critic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.objectives.common import rollout_logs, score
from tellapart.ops import Reduction, group_mean, kl_k3, leave_one_out_mean, reduce, sequence_logprob
from tellapart.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, PositiveUnitFloat, in_range
from tellapart.types import Batch, Decoding, ObjectiveModule, Reward, Rollout, StepOutput

GROUP_BASELINES = {"leave_one_out": leave_one_out_mean, "beam_mean": group_mean}


@dataclass(frozen=True)
class Experience:
    """Drawn captions with ``[N]`` advantages without the KL term and, if there is one, ``[N, T]`` reference log-probabilities."""

    rollout: Rollout
    encoded: Encoded | None
    advantage: Tensor
    reference_logprobs: Tensor | None
    logs: dict[str, Tensor]


class SCST(ObjectiveModule):
    """Self-critical sequence training (Rennie et al., CVPR 2017), ``L = -E[(r - b) log p(caption)]``.

    The baseline ``b`` is the reward of the greedy caption (``greedy``, the paper), the mean reward of the image's other
    samples (``leave_one_out``: "new self-critical", Luo 2020; RLOO), or the mean over the beams that are then the
    trajectories themselves (``beam_mean``: the comparator of DiCO, Moratelli et al. 2024).

    Departures: beams are not samples of the policy, so ``beam_mean`` is biased (as in the group's own code). With
    truncated or tempered sampling the gradient is that of the raw distribution. So it is for words that are never drawn,
    such as an LSTM's unknown word: where they have probability the gradient is slightly biased, and depends on the baseline.
    Papers state no KL term: ``kl_in="reward"`` subtracts ``kl_coef * sum_t (log p - log p_ref)`` from each caption's reward
    as RLOO does (the greedy reward carries none); ``kl_in="loss"`` adds ``kl_coef`` times the k3 estimate per token as GRPO
    does, under the same reduction. Its ``log p`` is that of the loss's own pass, without gradient in the reward: where dropout
    is on, the KL term has it too.

    Args:
        captioner: the model to train.
        reward: scores captions; higher is better.
        baseline: what is subtracted from the reward.
        num_generations: captions drawn for each image.
        max_new_tokens: longest caption in tokens, its EOS included.
        temperature: sampling temperature; unused by ``beam_mean``.
        top_k: sample from the N likeliest tokens, 0 keeps all; unused by ``beam_mean``.
        top_p: sample from the likeliest tokens that together have this probability, 1 keeps all; unused by ``beam_mean``.
        reduction: how token terms are averaged; ``token_mean`` is the common released code, ``seq_sum`` the papers'
            formula, ``seq_mean`` normalises by length (DiCO's comparator).
        kl_coef: weight of the KL term towards the start model; 0 keeps no start model in memory.
        kl_in: ``reward`` or ``loss``.

    Raises:
        ValueError: a number is outside its range, a choice is unknown, or fewer than two captions are asked of a group baseline.
    """

    shards = True
    reads_drawing: ClassVar[bool] = True
    """Whether the samples are scored by what drawing computed: their log-probabilities alone can be."""

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        *,
        baseline: Literal["greedy", "leave_one_out", "beam_mean"] = "greedy",
        num_generations: PositiveInt = 5,
        max_new_tokens: PositiveInt = 40,
        temperature: PositiveFloat = 1.0,
        top_k: NonNegativeInt = 0,
        top_p: PositiveUnitFloat = 1.0,
        reduction: Reduction = "token_mean",
        kl_coef: NonNegativeFloat = 0.0,
        kl_in: Literal["reward", "loss"] = "reward",
    ) -> None:
        super().__init__()
        if baseline in GROUP_BASELINES and num_generations < 2:
            raise ValueError(f"baseline={baseline!r} compares captions of one image: set num_generations to 2 or more")
        self.captioner, self.reward, self.baseline, self.reduction = captioner, reward, baseline, reduction
        self.kl_coef, self.kl_in = kl_coef, kl_in
        self.reference = captioner.reference() if kl_coef else None
        samples = Decoding(
            num_return_sequences=num_generations,
            do_sample=True,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
        )
        beams = Decoding(num_beams=num_generations, num_return_sequences=num_generations, max_new_tokens=max_new_tokens)
        self.decoding = beams if baseline == "beam_mean" else samples

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw captions, score them, subtract the baseline."""
        with self.captioner.remembering() if self.reads_drawing else nullcontext():
            encoded = self.captioner.encode(batch)
            rollout, greedy = self._drawn(batch, encoded)
        rewards, logs = score(self.reward, rollout)
        logs |= rollout_logs(rollout, rewards)
        reference = None
        if self.reference is not None:
            reference = self.reference(rollout, encoded=encoded).logprobs
        advantage = rewards - self._baseline(rollout, rewards, greedy)
        return Experience(rollout, self.captioner.reusable(encoded), advantage, reference, logs)

    def _drawn(self, batch: Batch, encoded: Encoded) -> tuple[Rollout, Rollout | None]:
        """The captions to learn from, and the greedy ones if they are the baseline."""
        if self.baseline in GROUP_BASELINES:
            return self.captioner.generate(batch, self.decoding, encoded=encoded), None
        return self.captioner.generate_with_greedy(batch, self.decoding, encoded=encoded)

    def _baseline(self, rollout: Rollout, rewards: Tensor, greedy: Rollout | None) -> Tensor:
        if greedy is None:
            return GROUP_BASELINES[self.baseline](rewards, rollout.image)
        return score(self.reward, greedy)[0][rollout.image]

    def _penalty(self, rollout: Rollout, kl: Tensor) -> Tensor:
        """``[N]``: what ``[N]`` log-ratios to the start model, taken off the rewards, take off the advantages."""
        baseline = GROUP_BASELINES.get(self.baseline)
        return self.kl_coef * (kl if baseline is None else kl - baseline(kl, rollout.image))

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """One piece: the score-function loss, with the KL term where it belongs."""
        rollout, reference, logs = experience.rollout, experience.reference_logprobs, experience.logs
        logprobs = self.captioner(rollout, encoded=experience.encoded).logprobs
        advantage = experience.advantage
        if reference is not None:
            logs = logs | {"kl": sequence_logprob(logprobs.detach() - reference, rollout.mask)}
            if self.kl_in == "reward":
                advantage = advantage - self._penalty(rollout, logs["kl"]).to(advantage.dtype)
        values = -advantage[:, None].to(logprobs.dtype) * logprobs
        if self.kl_in == "loss" and reference is not None:
            values = values + self.kl_coef * kl_k3(logprobs, reference, rollout.mask)
        loss, weight = reduce(values, rollout.mask, self.reduction)
        yield StepOutput(loss, weight, logs)
