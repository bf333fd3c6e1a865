"""Contrastive training of a listener with generated captions and images as further positives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tellapart.draws import base_seed, mix_seeds, uniforms
from tellapart.errors import UsageError
from tellapart.listeners.trained import TrainedListener
from tellapart.objectives.contrastive import contrast, draw_texts, in_buckets
from tellapart.ranges import NonNegativeFloat, PositiveInt, in_range
from tellapart.types import Batch, ObjectiveModule, StepOutput

GENERATED_IMAGES = "generated_images"
"""Key in ``batch.inputs`` of the pictures that were generated for the images of a batch."""


@dataclass(frozen=True)
class Positives:
    """What the images of a batch are drawn together with.

    Args:
        batch: B images, with a generated picture of each under ``GENERATED_IMAGES``, or without.
        texts: B human captions.
        generated: B generated captions, or none at all.
    """

    batch: Batch
    texts: list[str]
    generated: list[str]


class PositiveAugmented(ObjectiveModule):
    """Positive-augmented contrastive learning, PAC (Sarto et al., CVPR 2023, section 3; PAC-S++: Sarto et al., 2024).

    ``L = N(V, T) + image_weight * N(V', T) + caption_weight * N(V, T')`` of images V, human captions T, generated images V' and
    generated captions T', where N is the symmetric InfoNCE of ``Contrastive``, each
    with candidates of its own. The paper's weights are 0.05 (lambda_v) and 0.1 (lambda_t); it trains the two projections of
    CLIP and nothing else (``ProjectionsListener``), PAC-S++ low-rank adapters in both
    towers (``AdaptedListener``).

    Departures: texts that occur twice in a batch are one candidate and not negatives of each other's images, which matters
    for generated captions, of which many are alike; one human and one generated caption of each image are drawn again each
    epoch; the temperature stays as it is where only projections or adapters learn; no stop by validation loss, the loop
    selects a checkpoint instead. Without generated images their term is left out.

    Args:
        listener: what learns, as the part ``listener``; it decides which weights train.
        captions: image id -> its generated captions.
        caption_weight: of the term with generated captions; 0 leaves it out, and needs none.
        image_weight: of the term with generated images, in batches that have some.
        buckets: number of groups of similar length that texts are read in, which saves padding and changes nothing else.

    Raises:
        ValueError: a weight or number cannot be used.
    """

    decomposes = False

    @in_range
    def __init__(
        self,
        listener: TrainedListener,
        captions: Mapping[str, Sequence[str]],
        *,
        caption_weight: NonNegativeFloat = 0.1,
        image_weight: NonNegativeFloat = 0.05,
        buckets: PositiveInt = 3,
    ) -> None:
        super().__init__()
        self.listener, self.captions, self.buckets = listener, captions, buckets
        self.caption_weight, self.image_weight = caption_weight, image_weight

    def collect(self, batch: Batch, step: int) -> Positives:
        """Draw one human and one generated caption of each image.

        Raises:
            UsageError: an image lacks one.
        """
        seed = base_seed()
        texts = draw_texts(batch, seed)
        if not self.caption_weight:
            return Positives(batch, texts, [])
        chosen = uniforms(batch.ids, 1, mix_seeds(seed, "generated"))[:, 0].tolist()
        own = [_of(self.captions, image_id) for image_id in batch.ids]
        return Positives(batch, texts, [some[int(share * len(some))] for share, some in zip(chosen, own, strict=True)])

    def losses(self, positives: Positives) -> Iterator[StepOutput]:
        """One piece: the loss summed over images."""
        batch = positives.batch
        words = list(dict.fromkeys([*positives.texts, *positives.generated]))
        read = dict(zip(words, in_buckets(words, self.listener.embed_texts, self.buckets), strict=True))
        images = self.listener.embed_images(batch)
        loss, logs = self._together(images, positives.texts, read)
        logs["human_loss"] = loss.detach()
        further: dict[str, tuple[float, Tensor, list[str]]] = {}
        if self.image_weight and GENERATED_IMAGES in batch.inputs:
            drawn = replace(batch, inputs={self.listener.name: batch.inputs[GENERATED_IMAGES]})
            further["generated_images"] = self.image_weight, self.listener.embed_images(drawn), positives.texts
        if positives.generated:
            further["generated_captions"] = self.caption_weight, images, positives.generated
        for name, (weight, pictures, texts) in further.items():
            own, told = self._together(pictures, texts, read)
            loss = loss + weight * own
            logs |= {f"{name}_loss": own.detach(), f"{name}/recall@1": told["recall@1"]}
        yield StepOutput(loss.sum(), loss.new_tensor(float(len(loss))).detach(), logs)

    def _together(
        self, images: Tensor, texts: Sequence[str], read: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """``[B]`` InfoNCE of images and their texts among these alone, and logs."""
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        true = torch.tensor([place[text] for text in texts], device=images.device)
        loss, _, logs = contrast(self.listener.listener, images, torch.stack([read[text] for text in place]), true)
        return loss, logs


def _of(captions: Mapping[str, Sequence[str]], image_id: str) -> Sequence[str]:
    """The generated captions of an image.

    Raises:
        UsageError: there are none.
    """
    found = captions.get(image_id, ())
    if not found:
        raise UsageError(
            f"positive-augmented training needs a generated caption of every image, but {image_id!r} has none: caption it, "
            "or leave it out."
        )
    return found
