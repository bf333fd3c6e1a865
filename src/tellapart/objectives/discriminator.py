"""Pre-training of discriminators: people's captions against those of the start model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tellapart.draws import base_seed, mix_seeds, uniforms
from tellapart.errors import UsageError
from tellapart.listeners.remember import RememberingTexts
from tellapart.types import Batch, LearnedReward, ObjectiveModule, Rollout, StepOutput

Draw = Callable[[Batch], Rollout]
"""One or more generated captions of every image of a batch."""

Read = Callable[[Batch, Sequence[str], Tensor], Rollout]
"""People's captions as a rollout: ``tokenize``."""


class OtherCaptions:
    """People's captions of other images: captions written by people that do not fit the image (G-GAN: Dai et al., ICCV 2017).

    Which one follows from image id and seed alone.

    Args:
        references: image id -> its captions; images without any give none.

    Raises:
        UsageError: fewer than two images have captions.
    """

    def __init__(self, references: Mapping[str, Sequence[str]]) -> None:
        self._captions = [[text.strip() for text in texts if text.strip()] for texts in references.values()]
        self._captions = [texts for texts in self._captions if texts]
        if len(self._captions) < 2:
            raise UsageError("captions of other images need at least two images with captions: give more data.")

    def __call__(self, batch: Batch, read: Read, seed: int) -> Rollout:
        """For every image a caption of another one, never a string that is among the image's own references.

        Raises:
            UsageError: all captions are also the image's own.
        """
        numbers = uniforms(batch.ids, 2, mix_seeds(seed, "mismatched")).tolist()
        texts = [self._other(set(own), *pair) for own, pair in zip(batch.references, numbers, strict=True)]
        return read(batch, texts, torch.arange(len(batch)))

    def _other(self, own: set[str], where: float, which: float) -> str:
        first = int(where * len(self._captions))
        for place in range(len(self._captions)):
            texts = [text for text in self._captions[(first + place) % len(self._captions)] if text not in own]
            if texts:
                return texts[int(which * len(texts))]
        raise UsageError("all images have the same captions, so none can be mismatched: give other data.")


@dataclass(frozen=True)
class Sides:
    """People's captions of images, and captions of the same images, which the discriminator must distinguish from them."""

    real: Rollout
    fake: Rollout


class DiscriminatorPretraining(ObjectiveModule):
    """Trains a discriminator to distinguish references from a frozen captioner's captions (WTF-RL: Chaffin, Kijak & Claveau
    2024, section 3).

    ``L = mean over captions of the binary cross-entropy``, label 1 for people's. One reference is drawn for each image and
    step. The captioner is not a child, so it neither trains nor is saved.

    Departures: none known; the paper pre-trains on beams of 5 without repeated trigrams, which ``draw`` decides.

    Args:
        discriminator: an ``nn.Module``; the only thing that learns.
        draw: captions of the start captioner, drawn now or kept from before.
        read: people's captions as a rollout.
        others: also teaches it to reject people's captions of other images (G-GAN); none leaves them out.
    """

    def __init__(
        self, discriminator: LearnedReward, draw: Draw, read: Read, others: OtherCaptions | None = None
    ) -> None:
        super().__init__()
        if not isinstance(discriminator, nn.Module):
            raise ValueError("only an nn.Module can be trained")
        self.discriminator, self._draw, self._read, self._others = discriminator, draw, read, others

    def collect(self, batch: Batch, step: int) -> Sides:
        """One reference and the generated captions of every image; the choice depends on image id and seed alone.

        Raises:
            UsageError: an image has no reference.
        """
        listener = getattr(self.discriminator, "listener", None)
        if isinstance(listener, RememberingTexts):  # what it remembers must not depend on earlier steps
            listener.begin(step)
        seed = base_seed()
        real, fake = read_one_reference(batch, self._read, seed), self._draw(batch)
        if self._others is not None:
            fake = Rollout.concat([fake, self._others(batch, self._read, seed)])
        return Sides(real, fake)

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
                f"image {image_id!r} has no caption, but the method learns from people's captions of every image: leave it out."
            )
        texts.append(written[int(share * len(written))])
    return read(batch, texts, torch.arange(len(batch)))
