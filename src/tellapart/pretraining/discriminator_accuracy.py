"""How well a discriminator tells people's captions from generated ones that it never learned from."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from tellapart.captioners.base import Captioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.objectives.discriminator import Draw, read_one_reference
from tellapart.rewards.discriminator import Discriminator
from tellapart.rewards.discriminator_verdict import verdict

logger = logging.getLogger(__name__)

IMAGES_AT_ONCE = 256


@dataclass(frozen=True)
class HeldOut:
    """How a discriminator did on images it never learned from.

    Args:
        images: how many; each gives one reference and one generated caption.
        accuracy: share (0 to 1) of the captions told right.
        real: the same of the references alone.
        generated: the same of the generated captions alone.
    """

    images: int
    accuracy: float
    real: float
    generated: float


def measure(
    discriminator: Discriminator, dataset: CaptionDataset, captions: Draw, captioner: Captioner, *, seed: int = 0
) -> HeldOut:
    """Accuracy on one reference and one generated caption of every image; a probability of exactly 0.5 is a wrong answer.

    Args:
        discriminator: to be measured.
        dataset: the images, each with references; their embeddings must be known to the discriminator's listener.
        captions: the generated captions.
        captioner: reads references into rollouts.
        seed: which reference.
    """
    parts: dict[str, list[torch.Tensor]] = {"real": [], "fake": []}
    for first in range(0, len(dataset), IMAGES_AT_ONCE):
        batch = Collate({})(dataset.examples[first : first + IMAGES_AT_ONCE])
        parts["real"].append(discriminator(read_one_reference(batch, captioner.tokenize, seed)) > 0.5)
        parts["fake"].append(discriminator(captions(batch)) < 0.5)
    real, fake = (float(torch.cat(part).float().mean()) for part in parts.values())
    return HeldOut(len(dataset), (real + fake) / 2, real, fake)


def tell(kind: str, found: HeldOut | None) -> None:
    """Log the accuracy: as a warning with its remedy where the discriminator is useless, or where nothing was measured."""
    if found is None:
        logger.warning(
            "the discriminator's accuracy is not known: hold some images out of its pre-training (discriminator.held_out)."
        )
        return
    where = f"the captions of {found.images} images that it did not learn from"
    sentence = verdict(found.accuracy, 2 * found.images, where)
    if sentence is not None:
        logger.warning("%s", sentence)
    else:
        logger.info("the %s discriminator tells %.1f %% of %s right.", kind, 100 * found.accuracy, where)
