"""VLRM: an actor-critic on the scores of a matcher and a language model; no human captions are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.listeners.remember import RememberingTexts
from tellapart.objectives.common import rollout_logs, score
from tellapart.ops import Reduction, masked, reduce
from tellapart.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, in_range
from tellapart.rewards.contrastive import text_keys
from tellapart.rewards.penalties import token_returns
from tellapart.rewards.phi import phi
from tellapart.types import Batch, Decoding, Gather, Listener, ObjectiveModule, Reward, Rollout, StepOutput

if TYPE_CHECKING:
    from tellapart.captioners.critic import Critic

# What an actor-critic learns from: drawn captions with a return and an expectation for every token.


class TokenFlags(Protocol):
    """Which tokens of captions are penalised (``Penalties``)."""

    def __call__(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """``(bad, repeated)``, each ``[N, T]`` bool."""
        ...


@dataclass(frozen=True)
class Experience:
    """Drawn captions of a micro-batch and the returns of their tokens.

    Args:
        rollout: the captions, image by image.
        encoded: the images, if they stay valid.
        states: ``[N, T, D]``, what the critic reads, if it stays valid.
        returns: ``[N, T]``, 0 where masked.
        values: ``[N, T]``, what the critic expected, without gradient.
        advantage: ``[N, T]``, standardised over the effective batch; made by ``prepare``.
        pairs: ``[N, D]`` twice, embeddings of each caption's image and of the caption, if they are to be compared.
        logs: values to log.
    """

    rollout: Rollout
    encoded: Encoded | None
    states: Tensor | None
    returns: Tensor
    values: Tensor
    advantage: Tensor
    pairs: tuple[Tensor, Tensor] | None
    logs: dict[str, Tensor]


def cut(experience: Experience, images: int | None) -> Iterator[Experience]:
    """Slices of the experience, by a number of images each."""
    total = len(experience.rollout.batch)
    if images is None or images >= total:
        yield experience
        return
    for first in range(0, total, images):
        chosen = torch.arange(first, min(first + images, total))
        place = experience.rollout.image
        rows = ((place >= first) & (place < first + images)).nonzero().flatten()
        part = experience.rollout.select(rows)
        width = part.mask.shape[1]
        yield replace(
            experience,
            rollout=replace(part, batch=part.batch.select(chosen), image=part.image - first),
            encoded=None if experience.encoded is None else experience.encoded.select(chosen.to(place.device)),
            states=None if experience.states is None else experience.states[rows][:, :width],
            returns=experience.returns[rows][:, :width],
            advantage=experience.advantage[rows][:, :width],
        )


PolicyLoss = Literal["probability", "log_probability"]
_WEIGHTED: dict[str, Callable[[Tensor], Tensor]] = {
    "probability": torch.exp,
    "log_probability": lambda logprobs: logprobs,
}


class VLRM(ObjectiveModule):
    """VLRM (Dzabraev, Kunitsyn & Ivaniuta, 2024): an advantage actor-critic on a matcher's and a language model's scores.

    A caption is drawn for every image of the effective batch, with top-k and a high temperature; each token's return is
    ``R_k = reward - no_eos - sum_{s >= k} (bad_s + repeated_s)`` (equation 1). ``L = L_v + L_p``, with ``L_v = mean_b (1/n)
    sum_k (R_k - V_k)^2`` and ``L_p = -mean_b (1/n) sum_k p_k M_k``: ``M`` is ``R - V`` of mean 0 and unbiased deviation 1 over
    all tokens of the effective batch, and ``p_k`` a probability, not its logarithm. So rare tokens weigh little, and
    the gradient is not that of the expected return; that of ``log_probability`` is with ``token_mean``, up to its scale. The
    ``1/n`` makes a token count for more in a short caption: the last tokens have no penalty to come and so returns above
    the mean, and unless the critic knows that, ending early is learned (docs/results/world-vlrm.md). Each batch
    is used once.

    Departures, where the paper does not say: ``p_k`` is that of the raw distribution (temperature 1, nothing cut off), ``1e-8``
    is added to the deviation, and EOS has no penalty of its own, whatever Table 1 says in its last row.

    Args:
        captioner: the model to train.
        reward: of whole captions: a matcher's logit and a language model's mean log-probability in the paper.
        critic: is trained with the captioner to predict the returns.
        penalties: which tokens are bad or repeated; none penalises none.
        policy_loss: ``probability`` (the paper) or ``log_probability``.
        reduction: how token terms of both losses are averaged: ``seq_mean`` (the paper), ``token_mean`` or ``seq_sum``, see
            ``reduce``.
        num_generations: captions drawn for each image.
        temperature: sampling temperature.
        top_k: sample from the N likeliest tokens; 0 keeps all tokens.
        max_new_tokens: longest caption in tokens, its EOS included.
        bad_phrase_penalty: penalty of a token inside a listed phrase or a year.
        repeated_word_penalty: penalty of a token of a repeated word.
        no_eos_penalty: penalty of a caption without EOS.
        scoring_batch_size: images whose captions are scored again at once, with gradients; null takes a micro-batch at once.
        keep_image_states: keep the images' states from drawing until captions are scored again, and what a critic without an
            adapter reads; else both are computed a second time, which saves memory with large effective batches.

    Raises:
        ValueError: a choice is unknown, or a number cannot be used.
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        critic: Critic,
        penalties: TokenFlags | None = None,
        *,
        policy_loss: PolicyLoss = "probability",
        reduction: Reduction = "seq_mean",
        num_generations: PositiveInt = 1,
        temperature: PositiveFloat = 2.0,
        top_k: NonNegativeInt = 6,
        max_new_tokens: PositiveInt = 60,
        bad_phrase_penalty: NonNegativeFloat = 1.0,
        repeated_word_penalty: NonNegativeFloat = 1.0,
        no_eos_penalty: NonNegativeFloat = 1.0,
        scoring_batch_size: PositiveInt | None = None,
        keep_image_states: bool = True,
    ) -> None:
        super().__init__()
        self.captioner, self.critic, self.reward, self.penalties = captioner, critic, reward, penalties
        self.weighted, self.reduction = _WEIGHTED[policy_loss], reduction
        self.scoring_batch_size, self.keep_image_states = scoring_batch_size, keep_image_states
        self.token_penalties, self.no_eos_penalty = (bad_phrase_penalty, repeated_word_penalty), no_eos_penalty
        self.decoding = Decoding(
            num_return_sequences=num_generations,
            do_sample=True,
            temperature=temperature,
            top_k=top_k,
            max_new_tokens=max_new_tokens,
        )

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw captions, score and penalise them, and ask the critic."""
        encoded = self.captioner.encode(batch)
        rollout = self.captioner.generate(batch, self.decoding, encoded=encoded)
        rewards, logs = score(self.reward, rollout)
        logs |= rollout_logs(rollout, rewards)
        returns = self._returns(rollout, rewards, logs)
        states = self.critic.fixed_states(rollout, encoded=encoded)
        values = self.critic(rollout, encoded=encoded, states=states).to(returns)
        kept, states = (self.captioner.reusable(encoded), states) if self.keep_image_states else (None, None)
        return Experience(rollout, kept, states, returns, values, torch.zeros_like(returns), self._pairs(rollout), logs)

    def _returns(self, rollout: Rollout, rewards: Tensor, logs: dict[str, Tensor]) -> Tensor:
        """``[N, T]`` returns; what was penalised, in tokens per caption, is added to the logs."""
        nothing = torch.zeros_like(rollout.mask)
        flags = (nothing, nothing) if self.penalties is None else self.penalties(rollout)
        bad, repeated = (flag.to(rewards) * penalty for flag, penalty in zip(flags, self.token_penalties, strict=True))
        for name, flag in zip(("bad_tokens", "repeated_tokens"), flags, strict=True):
            logs[f"penalties/{name}"] = flag.sum(dim=1).to(rewards)
        mask, finished = rollout.mask.to(rewards.device), rollout.finished.to(rewards.device)
        return token_returns(rewards, bad, repeated, mask, finished, no_eos_penalty=self.no_eos_penalty)

    def _pairs(self, rollout: Rollout) -> tuple[Tensor, Tensor] | None:
        """Embeddings to be compared over the effective batch; none here."""
        return None

    def compared(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """The experiences with returns that need the whole effective batch; here there are none."""
        return experiences

    def prepare(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """Advantages, standardised over all tokens of the effective batch."""
        experiences = self.compared(experiences, gather)
        everything = [
            gather(torch.cat([part[e.rollout.mask.to(part.device)].double() for e, part in pairs]))
            for pairs in ([(e, e.returns - e.values) for e in experiences], [(e, e.returns) for e in experiences])
        ]
        (mean, std), (_, spread) = (_moments(values) for values in everything)
        logs = {"advantage_std": std[None]}
        if spread > 1e-8:  # where all returns are equal, nothing is there to be explained
            logs["explained_variance"] = (1 - (std / spread) ** 2)[None]
        return [
            replace(e, advantage=((e.returns - e.values - mean) / (std + 1e-8)).to(e.returns), logs=e.logs | logs)
            for e in experiences
        ]

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """For as many images as are scored at once: a piece of the captioner's, and one of the critic's."""
        logs = experience.logs
        for part in cut(experience, self.scoring_batch_size):
            mask, encoded = part.rollout.mask, self._encoded(part)
            logprobs = self.captioner(part.rollout, encoded=encoded).logprobs
            loss, count = reduce(-part.advantage.to(logprobs) * self.weighted(logprobs), mask, self.reduction)
            yield StepOutput(loss, count, logs)
            values = self.critic(part.rollout, encoded=encoded, states=part.states)
            errors = (part.returns.to(values) - values) ** 2
            loss, _ = reduce(errors, mask, self.reduction)
            each = masked(errors.detach(), mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            yield StepOutput(loss, loss.new_zeros(()), {"value_loss": each, "value": values.detach()[mask]})
            logs = {}

    def _encoded(self, part: Experience) -> Encoded | None:
        """The images' states, kept or computed once for both losses; none where they learn from the captioner's."""
        if part.encoded is not None or self.keep_image_states:
            return part.encoded
        with torch.no_grad():
            return self.captioner.reusable(self.captioner.encode(part.rollout.batch))


class VLRMRS(VLRM):
    """VLRM-RS (Dzabraev, Kunitsyn & Ivaniuta, 2024, section 3.5): VLRM with a contrastive term in the reward.

    The reward has no language model's term; to the matcher's logit ``phi_weight * Phi`` is added
    (``phi``): how well caption and image find each other among all of the effective batch.

    Departures: the paper does not say whether ``Phi`` is that of the whole batch or of a device; here it is the former. With
    several captions per image, its others are among those that a caption is compared with.

    Args:
        captioner: see ``VLRM``.
        reward: of whole captions: a matcher's logit.
        listener: the frozen dual encoder of ``Phi``; the paper's is OpenCLIP ViT-bigG/14.
        critic: see ``VLRM``.
        penalties: see ``VLRM``.
        phi_weight: of ``Phi``, which has mean 0 and deviation 1 over the effective batch.
        policy_loss: see ``VLRM``.
        reduction: see ``VLRM``.
        num_generations: captions drawn for each image.
        temperature: sampling temperature.
        top_k: sample from the N likeliest tokens; 0 keeps all tokens.
        max_new_tokens: longest caption in tokens, its EOS included.
        bad_phrase_penalty: penalty of a token inside a listed phrase or a year.
        repeated_word_penalty: penalty of a token of a repeated word.
        no_eos_penalty: penalty of a caption without EOS.
        scoring_batch_size: images whose captions are scored again at once, with gradients; null takes a micro-batch at once.
        keep_image_states: keep the images' states from drawing until captions are scored again, and what a critic without an
            adapter reads; else both are computed a second time, which saves memory with large effective batches.

    Raises:
        ValueError: a choice is unknown, or a number cannot be used.
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        listener: Listener,
        critic: Critic,
        penalties: TokenFlags | None = None,
        *,
        phi_weight: float = 0.3,
        policy_loss: PolicyLoss = "probability",
        reduction: Reduction = "seq_mean",
        num_generations: PositiveInt = 1,
        temperature: PositiveFloat = 2.0,
        top_k: NonNegativeInt = 6,
        max_new_tokens: PositiveInt = 60,
        bad_phrase_penalty: NonNegativeFloat = 1.0,
        repeated_word_penalty: NonNegativeFloat = 1.0,
        no_eos_penalty: NonNegativeFloat = 1.0,
        scoring_batch_size: PositiveInt | None = None,
        keep_image_states: bool = True,
    ) -> None:
        super().__init__(
            captioner,
            reward,
            critic,
            penalties,
            policy_loss=policy_loss,
            reduction=reduction,
            num_generations=num_generations,
            temperature=temperature,
            top_k=top_k,
            max_new_tokens=max_new_tokens,
            bad_phrase_penalty=bad_phrase_penalty,
            repeated_word_penalty=repeated_word_penalty,
            no_eos_penalty=no_eos_penalty,
            scoring_batch_size=scoring_batch_size,
            keep_image_states=keep_image_states,
        )
        self.listener, self.phi_weight = RememberingTexts.around(listener), phi_weight

    def collect(self, batch: Batch, step: int) -> Experience:
        """As ``VLRM`` does; what the listener remembers must not depend on earlier steps."""
        self.listener.begin(step)
        return super().collect(batch, step)

    def _pairs(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """The listener's embeddings of each caption's image and of the caption."""
        texts = self.listener.encode_texts(rollout.texts)
        images = self.listener.encode_images(rollout.batch).to(texts.device)
        return images[rollout.image.to(texts.device)], texts

    def compared(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """Returns with ``Phi``, and it among the logged parts of the reward."""
        pairs = [e.pairs for e in experiences if e.pairs is not None]
        images, texts = (torch.cat(column) for column in zip(*pairs, strict=True))
        # An objective knows of no ranks, so it finds its own captions by key; those of one key have the same Phi.
        keys = torch.cat([text_keys(e.rollout.ids(), e.rollout.texts) for e in experiences]).to(texts.device)
        own = (gather(keys) == keys[:, None]).int().argmax(dim=1)
        applied = self.phi_weight * phi(gather(images), gather(texts))[own]
        done = []
        for e, part in zip(experiences, applied.split([len(e.rollout) for e in experiences]), strict=True):
            shares = part.to(e.returns)
            logs = e.logs | {"rewards/phi": shares} | rollout_logs(e.rollout, e.logs["reward"] + shares)
            done.append(replace(e, returns=e.returns + masked(shares[:, None], e.rollout.mask), logs=logs))
        return done


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased deviation; a single value has none."""
    return values.mean(), values.std() if len(values) > 1 else values.new_zeros(())
