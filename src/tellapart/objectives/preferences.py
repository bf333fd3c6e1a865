"""Learning from given preferences: DPO, IPO and KTO on captions of which people, or a model, preferred one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from tellapart.captioners.base import Captioner, Encoded
from tellapart.data.preferences import PreferencePair, Preferences
from tellapart.draws import base_seed, uniforms
from tellapart.ops import sequence_logprob
from tellapart.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, in_range
from tellapart.types import Batch, Gather, ObjectiveModule, Rollout, StepOutput


@dataclass(frozen=True)
class Experience:
    """P pairs of captions of a micro-batch.

    Args:
        rollout: ``2 P`` captions, all chosen ones first.
        encoded: the images for the captioner, if they stay valid.
        reference_logprob: ``[2 P]`` log-probability of each caption under the start model.
        drift: ``[M]`` log-ratios (policy by start model, in nats) of captions that belong to other images, empty where none are
            needed; after ``prepare`` ``[1]``, their mean over the whole batch, at least 0.
    """

    rollout: Rollout
    encoded: Encoded | None
    reference_logprob: Tensor
    drift: Tensor


class OfflineDPO(ObjectiveModule):
    """Direct preference optimisation on given pairs (Rafailov, Sharma, Mitchell, Manning, Ermon & Finn, NeurIPS 2023, eq. 7).

    ``L = -mean log sigmoid(beta * (delta_chosen - delta_rejected))`` with ``delta = log p(c) - log p_ref(c)`` over whole captions
    (EOS included, no length normalisation). Pairs are those of a file; nothing is drawn and no reward is needed.

    Departures: dropout is off in the reference, and in the policy unless ``training.dropout`` is set. Prompts are not read.

    Args:
        captioner: the model to train.
        preferences: image id -> pairs; images without any do not learn.
        beta: strength of the tie to the start model.
        pairs_per_image: pairs drawn per image and step, without replacement; null takes all.

    Raises:
        ValueError: a number cannot be used.

    Example::

        objective = OfflineDPO(captioner, {"42": [PreferencePair("a red car", "a car")]}, beta=0.1)
        train(objective, data, TrainConfig(output_dir=Path("runs/offline_dpo"), max_steps=100))
    """

    shards = True
    draws = False

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        preferences: Preferences,
        *,
        beta: PositiveFloat = 0.1,
        pairs_per_image: PositiveInt | None = 1,
    ) -> None:
        super().__init__()
        self.captioner, self.preferences, self.beta, self.pairs_per_image = (
            captioner,
            preferences,
            beta,
            pairs_per_image,
        )
        self.reference = captioner.reference()
        most = max(map(len, preferences.values()), default=1)
        # What memory is estimated by: the captions of an image that are differentiated at once.
        self.num_return_sequences = 2 * min(most, pairs_per_image or most)

    def collect(self, batch: Batch, step: int) -> Experience:
        """Choose pairs, which depends on image id and seed alone, and score them under the start model."""
        rows, pairs = self._chosen(batch)
        texts = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        rollout = self.captioner.tokenize(batch, texts, torch.tensor([*rows, *rows], dtype=torch.long))
        encoded = self.captioner.encode(batch)
        logprobs = self.reference(rollout, encoded=encoded).logprobs
        reference = sequence_logprob(logprobs, rollout.mask)
        drift = self._drift(batch, encoded, rows, reference)
        return Experience(rollout, self.captioner.reusable(encoded), reference, drift)

    def losses(self, experience: Experience) -> Iterator[StepOutput]:
        """One piece: a loss per pair (KTO: per caption)."""
        rollout = experience.rollout
        logprobs = self.captioner(rollout, encoded=experience.encoded).logprobs
        logprob = sequence_logprob(logprobs, rollout.mask)
        chosen, rejected = (logprob - experience.reference_logprob).chunk(2)
        values = self._values(chosen, rejected, experience.drift)
        margin = (chosen - rejected).detach()
        lengths = rollout.lengths.to(margin.dtype).chunk(2)
        logs = {
            "margin": margin,
            "accuracy": (margin > 0).to(margin.dtype),
            "rewards/chosen": self.beta * chosen.detach(),
            "rewards/rejected": self.beta * rejected.detach(),
            "logps/chosen": logprob.detach().chunk(2)[0],
            "logps/rejected": logprob.detach().chunk(2)[1],
            "completions/chosen_length": lengths[0],
            "completions/rejected_length": lengths[1],
        }
        yield StepOutput(values.sum(), values.new_tensor(float(len(values))), logs)

    def _chosen(self, batch: Batch) -> tuple[list[int], list[PreferencePair]]:
        """The pairs of a step, and the row of ``batch`` that each is of."""
        own = [self.preferences.get(image_id, ()) for image_id in batch.ids]
        order = uniforms(batch.ids, max(1, *map(len, own)), base_seed())
        rows, pairs = [], []
        for row, known in enumerate(own):
            ranked = order[row, : len(known)].argsort().tolist()[: self.pairs_per_image]
            pairs += [known[place] for place in sorted(ranked)]
            rows += [row] * len(ranked)
        return rows, pairs

    def _drift(self, batch: Batch, encoded: Encoded, rows: list[int], like: Tensor) -> Tensor:
        return like.new_zeros(0)

    def _values(self, chosen: Tensor, rejected: Tensor, drift: Tensor) -> Tensor:
        """``[M]`` losses from the ``[P]`` log-ratios of chosen and rejected captions."""
        return -functional.logsigmoid(self.beta * (chosen - rejected))


class IPO(OfflineDPO):
    """Identity preference optimisation (Azar et al., AISTATS 2024, equation 17), on given pairs.

    ``L = mean (delta_chosen - delta_rejected - 1 / (2 beta))^2``: the margin is drawn to a fixed size, where DPO's grows without
    end if a pair is never contradicted. ``beta`` is the paper's tau. Everything else is ``OfflineDPO``'s.

    Departures: log-ratios are sums over the caption, as in the paper; TRL divides them by the caption's length.

    Example::

        objective = IPO(captioner, {"42": [PreferencePair("a red car", "a car")]}, beta=0.1)
        train(objective, data, TrainConfig(output_dir=Path("runs/ipo"), max_steps=100))
    """

    def _values(self, chosen: Tensor, rejected: Tensor, drift: Tensor) -> Tensor:
        return (chosen - rejected - 1 / (2 * self.beta)).square()


class KTO(OfflineDPO):
    """Kahneman-Tversky optimisation (Ethayarajh, Xu, Muennighoff, Jurafsky & Kiela, ICML 2024, section 4.1), on given pairs.

    Each caption counts separately: ``L = lambda_D (1 - sigmoid(beta (delta - z)))`` for a chosen one and
    ``lambda_U (1 - sigmoid(beta (z - delta)))`` for a rejected one. ``z``, without gradient, is the mean log-ratio of captions
    that belong to other images, at least 0: an estimate of the KL divergence from the start model.

    Departures: captions of other images are drawn from all chosen ones, keyed by image id, where the released code shifts the
    captions of a batch; so the loss does not depend on how a batch is cut. ``z`` is the mean over the step's whole batch.

    Args:
        captioner: as for ``OfflineDPO``.
        preferences: likewise.
        beta: likewise.
        pairs_per_image: likewise.
        desirable_weight: lambda_D.
        undesirable_weight: lambda_U.

    Raises:
        ValueError: a number cannot be used, or preferences are of one image only.

    Example::

        pairs = {"42": [PreferencePair("a red car", "a car")], "43": [PreferencePair("a dog asleep", "a dog")]}
        train(KTO(captioner, pairs), data, TrainConfig(output_dir=Path("runs/kto"), max_steps=100))
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        preferences: Preferences,
        *,
        beta: PositiveFloat = 0.1,
        pairs_per_image: PositiveInt | None = 1,
        desirable_weight: NonNegativeFloat = 1.0,
        undesirable_weight: NonNegativeFloat = 1.0,
    ) -> None:
        super().__init__(captioner, preferences, beta=beta, pairs_per_image=pairs_per_image)
        self._every = [(image_id, pair.chosen) for image_id, own in preferences.items() for pair in own]
        if len({image_id for image_id, _ in self._every}) < 2:
            raise ValueError("two images need preferences, which are compared with each other")
        self.desirable_weight, self.undesirable_weight = desirable_weight, undesirable_weight

    def prepare(self, experiences: list[Experience], gather: Gather) -> list[Experience]:
        """Give every micro-batch the mean log-ratio of the whole batch."""
        drift = gather(torch.cat([experience.drift for experience in experiences]))
        mean = drift.mean().clamp(min=0)[None] if len(drift) else drift.new_zeros(1)
        return [replace(experience, drift=mean) for experience in experiences]

    def _drift(self, batch: Batch, encoded: Encoded, rows: list[int], like: Tensor) -> Tensor:
        places = uniforms(batch.ids, 1, base_seed())[:, 0]
        asked = list(dict.fromkeys(rows))
        texts = [self._of_another(batch.ids[row], float(places[row])) for row in asked]
        rollout = self.captioner.tokenize(batch, texts, torch.tensor(asked, dtype=torch.long))
        ratio = self.captioner(rollout, encoded=encoded).logprobs - self.reference(rollout, encoded=encoded).logprobs
        return sequence_logprob(ratio, rollout.mask)

    def _of_another(self, image_id: str, place: float) -> str:
        """A chosen caption of another image: the one at ``place`` (0 to 1) among all, or the next that is of another."""
        count = len(self._every)
        start = int(place * count)
        turned = (self._every[(start + offset) % count] for offset in range(count))
        return next(text for owner, text in turned if owner != image_id)

    def _values(self, chosen: Tensor, rejected: Tensor, drift: Tensor) -> Tensor:
        liked = self.desirable_weight * (1 - torch.sigmoid(self.beta * (chosen - drift)))
        disliked = self.undesirable_weight * (1 - torch.sigmoid(self.beta * (drift - rejected)))
        return torch.cat([liked, disliked])
