"""G-GAN: a captioner with noise against an evaluator of images and captions, with feedback at every word from roll-outs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner, Continuations, Encoded
from tellapart.captioners.noise import ImageNoise
from tellapart.draws import base_seed, mix_seeds
from tellapart.errors import UsageError
from tellapart.listeners.remember import RememberingTexts
from tellapart.objectives.common import rollout_logs
from tellapart.objectives.discriminator import OtherCaptions, read_one_reference
from tellapart.ops import Reduction, masked, reduce
from tellapart.ranges import NonNegativeFloat, PositiveInt, in_range
from tellapart.types import Batch, Decoding, Gather, LearnedReward, Listener, ObjectiveModule, Rollout, StepOutput


@dataclass(frozen=True)
class Triples:
    """What the evaluator learns from in one update: three captions of each image.

    Args:
        real: written for the image.
        generated: drawn by the captioner.
        mismatched: written for another image.
    """

    real: Rollout
    generated: Rollout
    mismatched: Rollout


@dataclass(frozen=True)
class Experience:
    """A micro-batch: triples for each of the evaluator's updates, then captions for the captioner's.

    Args:
        triples: one for each of the evaluator's updates.
        rollout: N drawn captions, one of each image.
        encoded: the images without noise, if they stay valid.
        z: ``[N, size]`` noise that the captions were drawn with; none without noise.
        continued: roll-outs from the prefixes of the captions.
        turn: which update comes next; the captioner's is the last.
        advantage: ``[N, T]``, what the log-probabilities are weighted by; made by ``prepare`` for the captioner's update.
        logs: values to log.
    """

    triples: tuple[Triples, ...]
    rollout: Rollout
    encoded: Encoded | None
    z: Tensor | None
    continued: Continuations
    turn: int = -1
    advantage: Tensor | None = None
    logs: dict[str, Tensor] | None = None


class GGAN(ObjectiveModule):
    """G-GAN (Dai, Fidler, Urtasun & Lin, ICCV 2017, section 3), a conditional GAN quoted in PSST's table.

    The evaluator ``r(I, S) = sigmoid(<f(I), h(S)>)`` learns from triples, ``L_E = -mean_i [log r(real) + a log(1 - r(generated))
    + b log(1 - r(mismatched))]``. The generator, a captioner that also reads noise z, learns by policy gradient: ``L_G = -mean_i
    sum_t V_t log p(w_t)``, where ``V_t`` is the mean score of ``num_rollouts`` captions that continue the first t words by
    sampling, and the caption's own score at its end. A step has ``evaluator_steps`` updates of the evaluator, with fresh captions
    for each, and then one of the captioner, whose captions the updated evaluator scores.

    Departures:
        Noise is added to the image states by a learned projection (``ImageNoise``), which works
        for every captioner. With z = 0 the captioner is a plain one, and evaluations decode it so.
        The captioner's teacher forcing is the recipe ``xe``, without noise.
        The evaluator's updates of a step are on the images of the captioner's update, not on batches of their own.
        The evaluator reads a frozen listener's embeddings of images and words.
        The paper has no baseline. ``prefix_baseline`` subtracts ``V_{t-1}``, which leaves the expected gradient unchanged where
        words that are never drawn (an LSTM's unknown word) have no probability.
        The paper decodes by beam search on the evaluator's score; here captions are decoded by the captioner's likelihood.

    Args:
        captioner: the generator.
        listener: embeds images and words for the evaluator; frozen.
        noise: draws z and adds it to the image states, learns with the captioner; none trains without noise.
        other_captions: people's captions of other images.
        discriminator: the evaluator; learns and scores.
        num_rollouts: captions that continue each prefix.
        evaluator_steps: updates of the evaluator before each of the captioner.
        prefix_baseline: subtract the value of the words before; off in the paper.
        generated_weight: of drawn captions in the evaluator's loss (a); people's captions have weight 1.
        mismatched_weight: of other images' captions there (b).
        reduction: how token terms are averaged; ``seq_sum`` is the paper's sum over words.
        max_new_tokens: longest caption in tokens, its EOS included.

    Raises:
        ValueError: a number or name cannot be used.

    Example::

        objective = GGAN(captioner, listener, noise, OtherCaptions(dataset.references), discriminator)
        train(objective, TrainingData(dataset, collate), TrainConfig(output_dir="runs/g_gan", max_steps=100))
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        listener: Listener,
        noise: ImageNoise | None,
        other_captions: OtherCaptions,
        discriminator: LearnedReward | None = None,
        *,
        num_rollouts: PositiveInt = 16,
        evaluator_steps: PositiveInt = 5,
        prefix_baseline: bool = False,
        generated_weight: NonNegativeFloat = 1.0,
        mismatched_weight: NonNegativeFloat = 1.0,
        reduction: Reduction = "seq_sum",
        max_new_tokens: PositiveInt = 17,
    ) -> None:
        super().__init__()
        self.captioner, self.noise, self.discriminator = captioner, noise, discriminator
        self.listener, self._others = RememberingTexts.around(listener), other_captions
        self.prefix_baseline, self.reduction, self.evaluator_steps = prefix_baseline, reduction, evaluator_steps
        self.weights = (1.0, generated_weight, mismatched_weight)
        self.turns = evaluator_steps + 1
        self.sampled = Decoding(do_sample=True, max_new_tokens=max_new_tokens)
        self.rolled = replace(self.sampled, num_return_sequences=num_rollouts)

    def collect(self, batch: Batch, step: int) -> Experience:
        """Draw captions, continue their prefixes, and gather triples for every update of the evaluator.

        Raises:
            UsageError: the evaluator is missing, or an image has no human caption.
        """
        if self.discriminator is None:
            raise UsageError("g_gan learns from its discriminator: leave discriminator: null out of the recipe.")
        self.listener.begin(step)
        encoded = self.captioner.encode(batch)
        triples = tuple(self._triples(batch, encoded) for _ in range(self.evaluator_steps))
        z = self._noise_of(batch, base_seed())
        noisy = self._noisy(encoded, z)
        rollout = self.captioner.generate(batch, self.sampled, encoded=noisy)
        shortest = 0 if self.prefix_baseline else 1
        continued = self.captioner.continue_from(rollout, self.rolled, shortest=shortest, encoded=noisy)
        return Experience(triples, rollout, self.captioner.reusable(encoded), z, continued)

    def _triples(self, batch: Batch, encoded: Encoded) -> Triples:
        seed = base_seed()
        noisy = self._noisy(encoded, self._noise_of(batch, seed))
        return Triples(
            read_one_reference(batch, self.captioner.tokenize, seed),
            self.captioner.generate(batch, self.sampled, encoded=noisy),
            self._others(batch, self.captioner.tokenize, seed),
        )

    def _noise_of(self, batch: Batch, seed: int) -> Tensor | None:
        return None if self.noise is None else self.noise.draw(batch.ids, mix_seeds(seed, "noise"))

    def _noisy(self, encoded: Encoded, z: Tensor | None) -> Encoded:
        return encoded if self.noise is None or z is None else self.noise(encoded, z)

    def prepare(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """The next update; for the captioner's, the captions' scores by the evaluator as it is by then."""
        turn = experiences[0].turn + 1
        if turn < self.evaluator_steps:
            return [replace(experience, turn=turn) for experience in experiences]
        return [self._scored(replace(experience, turn=turn)) for experience in experiences]

    def _scored(self, experience: Experience) -> Experience:
        assert self.discriminator is not None
        rollout, continued = experience.rollout, experience.continued
        whole = self.discriminator(rollout)
        rolled = self.discriminator(continued.rollout) if len(continued.rollout) else whole[:0]
        values = prefix_values(rolled, continued, whole, rollout.mask)
        advantage = values[:, 1:] - values[:, :-1] if self.prefix_baseline else values[:, 1:]
        return replace(
            experience,
            advantage=masked(advantage, rollout.mask.to(advantage.device)),
            logs=rollout_logs(rollout, whole) | {"value": values[:, 1:][rollout.mask.to(values.device)]},
        )

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """One piece: the evaluator's, or in the last turn the captioner's."""
        if experience.turn < self.evaluator_steps:
            yield self._evaluator_loss(experience.triples[experience.turn])
            return
        assert experience.advantage is not None
        assert experience.logs is not None
        rollout = experience.rollout
        encoded = experience.encoded or self.captioner.encode(rollout.batch)
        logprobs = self.captioner(rollout, encoded=self._noisy(encoded, experience.z)).logprobs
        values = -experience.advantage.to(logprobs) * logprobs
        loss, weight = reduce(values, rollout.mask, self.reduction)
        yield StepOutput(loss, weight, experience.logs)

    def _evaluator_loss(self, triples: Triples) -> StepOutput:
        """The three cross-entropies of every image, summed; the weight is the number of images."""
        assert self.discriminator is not None
        count = len(triples.real)
        fake = Rollout.concat([triples.generated, triples.mismatched])
        losses, logs = self.discriminator.loss(triples.real, fake)
        weights = losses.new_tensor(self.weights).repeat_interleave(count)
        if "discriminator/fake" in logs:
            fakes = logs["discriminator/fake"]
            logs = logs | {"discriminator/fake": fakes[:count], "discriminator/mismatched": fakes[count:]}
        return StepOutput((losses * weights).sum(), losses.new_tensor(float(count)), logs)


def prefix_values(rolled: Tensor, continued: Continuations, whole: Tensor, mask: Tensor) -> Tensor:
    """``[N, T + 1]``: the value of the first t tokens of each caption, column t: the mean score of what continues them, at the
    end the caption's own score; 0 where nothing was continued.

    Args:
        rolled: ``[M]`` scores of the continuations.
        continued: which prefix each continues.
        whole: ``[N]`` scores of the captions.
        mask: ``[N, T]`` bool, real tokens of the captions.
    """
    sums, counts = (whole.new_zeros(len(whole), mask.shape[1] + 1) for _ in range(2))
    place = (continued.caption.to(whole.device), continued.length.to(whole.device))
    sums.index_put_(place, rolled.to(whole), accumulate=True)
    counts.index_put_(place, torch.ones_like(rolled).to(whole), accumulate=True)
    values = sums / counts.clamp(min=1)
    values[torch.arange(len(whole), device=whole.device), mask.sum(dim=1).to(whole.device)] = whole
    return values
