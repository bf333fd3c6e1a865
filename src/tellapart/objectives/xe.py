"""Teacher forcing: cross-entropy on human captions."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tellapart.captioners.base import Captioner
from tellapart.draws import base_seed, uniforms
from tellapart.ops import reduce
from tellapart.types import Batch, ObjectiveModule, Rollout, StepOutput


class XE(ObjectiveModule):
    """Cross-entropy with teacher forcing, averaged over tokens (``token_mean`` of :func:`tellapart.ops.reduce`).

    ``L = -sum_{n,t} log p(w_t | w_<t, image) / number of tokens``, EOS counted, BOS never scored.

    Args:
        captioner: the model to train.
        captions_per_image: references drawn for each image and step (without replacement, all if there are fewer); null uses
            all of them every time.
    """

    def __init__(self, captioner: Captioner, *, captions_per_image: int | None = None) -> None:
        super().__init__()
        if captions_per_image is not None and captions_per_image < 1:
            raise ValueError(f"captions_per_image={captions_per_image} must be at least 1, or none for all")
        self.captioner, self.captions_per_image = captioner, captions_per_image

    def collect(self, batch: Batch, step: int) -> Rollout:
        """Choose and tokenise references; the choice depends on image id and seed, not on the batch around it."""
        texts: list[str] = []
        image: list[int] = []
        most = max((len(references) for references in batch.references), default=0)
        order = uniforms(batch.ids, max(most, 1), base_seed())
        for row, references in enumerate(batch.references):
            ranked = order[row, : len(references)].argsort().tolist()[: self.captions_per_image]
            texts += [references[i] for i in sorted(ranked)]
            image += [row] * len(ranked)
        return self.captioner.tokenize(batch, texts, torch.tensor(image, dtype=torch.long))

    def losses(self, rollout: Rollout) -> Iterator[StepOutput]:
        """One piece: the negative log-likelihood of the references."""
        logprobs = self.captioner(rollout).logprobs
        loss, weight = reduce(-logprobs, rollout.mask, "token_mean")
        logs = {"completions/mean_length": rollout.lengths.to(logprobs.dtype)}
        yield StepOutput(loss, weight, logs)
