"""Teacher forcing: cross-entropy on human captions, optionally with scheduled sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.draws import base_seed, uniforms
from tellapart.ops import reduce
from tellapart.ranges import PositiveFloat, PositiveInt, UnitFloat, in_range
from tellapart.types import Batch, ObjectiveModule, Rollout, StepOutput


@dataclass(frozen=True)
class Experience:
    """The human captions of a micro-batch.

    Args:
        rollout: what is scored.
        encoded: the images for the captioner, if they are known and stay valid.
        read: ``[N, T]``, what the captioner reads in place of the rollout's words; none: these.
    """

    rollout: Rollout
    encoded: Encoded | None = None
    read: Tensor | None = None


class XE(ObjectiveModule):
    """Cross-entropy with teacher forcing, averaged over tokens (``token_mean`` of ``reduce``).

    ``L = -sum_{n,t} log p(w_t | r_<t, image) / number of tokens``, EOS counted, BOS never scored. What is read, ``r``, is the
    human caption ``w``; with scheduled sampling each of its words is replaced, with a probability that rises over the
    training, by one drawn from the captioner (Bengio et al., NeurIPS 2015; two passes for transformers: Mihaylova & Martins,
    ACL 2019).

    Departures of scheduled sampling: words are drawn without dropout, and never the unknown word. The schedule is that of
    the code that PSST builds on, steps in place of epochs; Bengio et al. let the probability follow a smooth curve.

    Args:
        captioner: the model to train.
        captions_per_image: references drawn for each image and step (without replacement, all if there are fewer); null uses
            all of them every time.
        scheduled_sampling: highest probability (0 to 1) that a word is replaced by the captioner's own before it is read; 0 is
            teacher forcing.
        scheduled_sampling_increase: what the probability rises by, from 0 at step 0.
        scheduled_sampling_steps: optimiser steps between two rises.

    Raises:
        ValueError: a number cannot be used.
        UsageError: the captioner cannot read other words than it scores (at the first step that needs it).

    Example::

        objective = XE(captioner, captions_per_image=5, scheduled_sampling=0.25, scheduled_sampling_steps=4425)
        rate = objective.sampling_probability(9000)  # 0.1
        train(objective, data, TrainConfig(output_dir=Path("runs/xe"), max_steps=26_550))
    """

    shards = True

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        *,
        captions_per_image: PositiveInt | None = None,
        scheduled_sampling: UnitFloat = 0.0,
        scheduled_sampling_increase: PositiveFloat = 0.05,
        scheduled_sampling_steps: PositiveInt = 1000,
    ) -> None:
        super().__init__()
        self.captioner, self.captions_per_image = captioner, captions_per_image
        self.draws = scheduled_sampling > 0
        self.highest, self.increase, self.every = (
            scheduled_sampling,
            scheduled_sampling_increase,
            scheduled_sampling_steps,
        )

    def sampling_probability(self, step: int) -> float:
        """The probability that a word is replaced at ``step``, which alone decides it."""
        return min(self.highest, self.increase * (step // self.every))

    def collect(self, batch: Batch, step: int) -> Experience:
        """Choose and tokenise references, and draw what is read in their place; both depend on image id and seed, not on the
        batch around them."""
        rollout = self._references(batch)
        probability = self.sampling_probability(step)
        if not probability or not len(rollout):
            return Experience(rollout)
        encoded = self.captioner.encode(batch)
        read = self.captioner.own_words(rollout, probability, encoded=encoded)
        return Experience(rollout, self.captioner.reusable(encoded), read)

    def _references(self, batch: Batch) -> Rollout:
        texts: list[str] = []
        image: list[int] = []
        most = max((len(references) for references in batch.references), default=0)
        order = uniforms(batch.ids, max(most, 1), base_seed())
        for row, references in enumerate(batch.references):
            ranked = order[row, : len(references)].argsort().tolist()[: self.captions_per_image]
            texts += [references[i] for i in sorted(ranked)]
            image += [row] * len(ranked)
        return self.captioner.tokenize(batch, texts, torch.tensor(image, dtype=torch.long))

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """One piece: the negative log-likelihood of the references."""
        rollout, read = experience.rollout, experience.read
        given = {} if read is None else {"read": read}
        logprobs = self.captioner(rollout, encoded=experience.encoded, **given).logprobs
        loss, weight = reduce(-logprobs, rollout.mask, "token_mean")
        logs = {"completions/mean_length": rollout.lengths.to(logprobs.dtype)}
        if read is not None:
            others = ((read != rollout.tokens) & rollout.mask).sum(dim=1) / rollout.lengths.clamp(min=1)
            logs["scheduled_sampling/own_words"] = others.to(logprobs.dtype)
        yield StepOutput(loss, weight, logs)
