"""Pre-training of the discriminator of WTF-RL: people's captions against those of the start model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tellapart.draws import base_seed, uniforms
from tellapart.errors import UsageError
from tellapart.listeners.remember import RememberingTexts
from tellapart.types import Batch, LearnedReward, ObjectiveModule, Rollout, StepOutput

Draw = Callable[[Batch], Rollout]
"""One or more generated captions of every image of a batch."""

Read = Callable[[Batch, Sequence[str], Tensor], Rollout]
"""People's captions as a rollout: :meth:`tellapart.captioners.base.Captioner.tokenize`."""


@dataclass(frozen=True)
class Sides:
    """People's captions and generated ones of the same images."""

    real: Rollout
    fake: Rollout


class DiscriminatorPretraining(ObjectiveModule):
    """Teaches a discriminator to tell references from a frozen captioner's captions (WTF-RL: Chaffin, Kijak & Claveau
    2024, section 3).

    ``L = mean over captions of the binary cross-entropy``, label 1 for people's. One reference is drawn for each image and
    step. The captioner is no child, so it neither trains nor is saved.

    Departures: none known; the paper pre-trains on beams of 5 without repeated trigrams, which is ``draw``'s affair.

    Args:
        discriminator: an ``nn.Module``; the only thing that learns.
        draw: captions of the start captioner, drawn now or kept from before.
        read: people's captions as a rollout.
    """

    def __init__(self, discriminator: LearnedReward, draw: Draw, read: Read) -> None:
        super().__init__()
        if not isinstance(discriminator, nn.Module):
            raise ValueError("only an nn.Module can be trained")
        self.discriminator, self._draw, self._read = discriminator, draw, read

    def collect(self, batch: Batch, step: int) -> Sides:
        """One reference and the generated captions of every image; the choice depends on image id and seed alone.

        Raises:
            UsageError: an image has no reference.
        """
        listener = getattr(self.discriminator, "listener", None)
        if isinstance(listener, RememberingTexts):  # what it remembers must not depend on earlier steps
            listener.begin(step)
        real = read_one_reference(batch, self._read, base_seed())
        return Sides(real, self._draw(batch))

    def losses(self, sides: Sides) -> Iterator[StepOutput]:
        """One piece: the cross-entropy summed over captions."""
        losses, logs = self.discriminator.loss(sides.real, sides.fake)
        yield StepOutput(losses.sum(), losses.new_tensor(float(len(losses))).detach(), logs)


def read_one_reference(batch: Batch, read: Read, seed: int) -> Rollout:
    """One reference of every image, chosen by its id and ``seed``.

    Raises:
        UsageError: an image has none.
    """
    texts = []
    for image_id, references, share in zip(
        batch.ids, batch.references, uniforms(batch.ids, 1, seed)[:, 0].tolist(), strict=True
    ):
        written = [reference for reference in references if reference.strip()]
        if not written:
            raise UsageError(
                f"a discriminator learns from people's captions, but image {image_id!r} has none: leave it out."
            )
        texts.append(written[int(share * len(written))])
    return read(batch, texts, torch.arange(len(batch)))
