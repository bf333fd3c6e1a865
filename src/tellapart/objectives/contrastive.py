"""Contrastive training of listeners: images and their texts are drawn together, all other pairs apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tellapart.draws import base_seed, mix_seeds, uniforms
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.trained import TrainedListener, image_embeddings
from tellapart.ranges import NonNegativeFloat, PositiveInt, in_range
from tellapart.types import Batch, ObjectiveModule, StepOutput

HardNegative = Callable[[str, np.random.Generator], str]
"""A true text -> a false one that differs from it by little (shuffled words, swapped attributes)."""

_LARGEST_LOGIT_SCALE = math.log(100.0)


@dataclass(frozen=True)
class Pairs:
    """One text for each image of a batch, and perhaps a false one.

    Args:
        batch: B images.
        texts: B true texts.
        negatives: B false texts, or none at all.
    """

    batch: Batch
    texts: list[str]
    negatives: list[str]


class Contrastive(ObjectiveModule):
    """Symmetric InfoNCE over the images of a batch (CLIP: Radford et al. 2021, section 2.3 and figure 3).

    ``L = (CE(image -> texts) + CE(text -> images)) / 2`` with logits ``exp(logit_scale) * cosine``, scale at most 100.
    Texts that occur twice in a batch are one candidate, and are not negatives of each other's images.

    With ``negative``, every image also gets a false text, which joins the candidates of all images (NegCLIP:
    Yuksekgonul et al. 2023, section 4); and because the other candidates soon drown it, the true text must also win
    against it alone: ``+ own_weight * CE(true or false text)``, a term NegCLIP does not have.

    What it does not do: images on other devices are not candidates, and there is no alternative image as a negative.

    Args:
        listener: the dual encoder to train. Two parts learn, each with its own learning rate if wanted: ``vision``, the
            image tower, and ``listener``, everything else. Where the image side is frozen, images are not read again if
            the listener has their embeddings.
        negative: makes the false text; none trains without. Its random numbers follow from image id and seed.
        own_weight: weight of the term above, without unit; used only with ``negative``.
        buckets: number of groups of similar length that texts are embedded in, which saves padding and changes nothing else.

    Raises:
        ValueError: a number is outside its range.
    """

    decomposes = False

    @in_range
    def __init__(
        self,
        listener: ClipListener,
        *,
        negative: HardNegative | None = None,
        own_weight: NonNegativeFloat = 1.0,
        buckets: PositiveInt = 3,
    ) -> None:
        super().__init__()
        self.vision, self.listener = listener.model.vision_model, TrainedListener(listener)
        self.encoder, self.negative, self.own_weight, self.buckets = listener, negative, own_weight, buckets

    def collect(self, batch: Batch, step: int) -> Pairs:
        """Draw one reference for each image, and its false sibling.

        Raises:
            UsageError: an image has no reference.
        """
        seed = base_seed()
        texts = draw_texts(batch, seed)
        if self.negative is None:
            return Pairs(batch, texts, [])
        own = generators(batch, seed)
        return Pairs(batch, texts, [self.negative(text, rng) for text, rng in zip(texts, own, strict=True)])

    def losses(self, pairs: Pairs) -> Iterator[StepOutput]:
        """One piece: the loss summed over images."""
        candidates = list(dict.fromkeys([*pairs.texts, *pairs.negatives]))
        column = {text: i for i, text in enumerate(candidates)}
        images = image_embeddings(self.encoder, pairs.batch)
        texts = in_buckets(candidates, self.encoder.embed_texts, self.buckets)
        true = torch.tensor([column[text] for text in pairs.texts], device=images.device)
        loss, logits, logs = contrast(self.encoder, images, texts, true)
        if pairs.negatives:
            false = torch.tensor([column[text] for text in pairs.negatives], device=logits.device)
            duel = torch.stack([logits.gather(1, index[:, None])[:, 0] for index in (true, false)], dim=1)
            real = true != false  # a text that nothing could be swapped in is its own sibling
            own = cross_entropy(duel, torch.zeros_like(true), reduction="none")
            loss = loss + self.own_weight * torch.where(real, own, torch.zeros_like(own))
            logs["negatives/accuracy"] = (duel[:, 0] > duel[:, 1])[real].float().detach()
        yield StepOutput(loss.sum(), loss.new_tensor(float(len(loss))).detach(), logs)


def draw_texts(batch: Batch, seed: int) -> list[str]:
    """One reference of each image, all equally likely; which, follows from ``seed`` and the image's id.

    Raises:
        UsageError: an image has no reference.
    """
    for image_id, references in zip(batch.ids, batch.references, strict=True):
        if not references:
            raise UsageError(
                f"image {image_id!r} has no text, but the training needs one of every image: leave it out."
            )
    chosen = uniforms(batch.ids, 1, seed)[:, 0].tolist()
    return [texts[int(share * len(texts))] for share, texts in zip(chosen, batch.references, strict=True)]


def generators(batch: Batch, seed: int) -> Iterator[np.random.Generator]:
    """For each image one that makes its false text; it follows from ``seed`` and the image's id."""
    return (np.random.default_rng(mix_seeds(seed, "negative", image_id)) for image_id in batch.ids)


def in_buckets(texts: Sequence[str], embed: Callable[[list[str]], Tensor], buckets: int) -> Tensor:
    """``embed`` over ``buckets`` groups of texts of similar length, which saves padding; rows in the order given."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    size = -(-len(order) // buckets)
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    embeddings = torch.cat([embed([texts[i] for i in group]) for group in groups])
    place = torch.empty(len(order), dtype=torch.long)
    place[torch.tensor(order)] = torch.arange(len(order))
    return embeddings[place.to(embeddings.device)]


def contrast(
    encoder: ClipListener, images: Tensor, texts: Tensor, true: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Symmetric InfoNCE: ``([B] loss of each image and its text, [B, C] logits, logs)``.

    Args:
        encoder: whose temperature the logits have.
        images: ``[B, D]``, unit norm.
        texts: ``[C, D]``, unit norm, of C different candidates.
        true: ``[B]`` which candidate is each image's text; images with the same one are not negatives of each other's.
    """
    # As CLIP does, the parameter is limited and not its exponential: that has no gradient at the limit, so it would stay there.
    with torch.no_grad():
        encoder.logit_scale.clamp_(max=_LARGEST_LOGIT_SCALE)
    scale = encoder.logit_scale.exp()
    # Times 100, cosines rounded to bfloat16 would be off by halves.
    with torch.autocast(images.device.type, enabled=False):
        logits = scale.float() * images @ texts.T
    loss = (_image_to_text(logits, true) + _text_to_image(logits, true)) / 2
    found = logits.argmax(dim=1) == true
    return loss, logits, {"logit_scale": scale.detach(), "recall@1": found.float().detach()}


def _image_to_text(logits: Tensor, true: Tensor) -> Tensor:
    """``[B]`` cross-entropy of each image's text among all candidates."""
    return cross_entropy(logits, true, reduction="none")


def _text_to_image(logits: Tensor, true: Tensor) -> Tensor:
    """``[B]`` cross-entropy of each text's image among all images but those with the very same text."""
    scores = logits[:, true].T  # [text, image]
    same = (true[:, None] == true[None, :]) & ~torch.eye(len(true), dtype=torch.bool, device=true.device)
    own = torch.arange(len(true), device=true.device)
    return cross_entropy(scores.masked_fill(same, float("-inf")), own, reduction="none")
