"""A dual encoder as a matcher: the cosine of image and caption, or the logit that it was trained with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tellapart.listeners.cache import NamedPicture
from tellapart.listeners.clip import ClipListener
from tellapart.types import Rollout

if TYPE_CHECKING:
    from PIL import Image


class DualMatcher:
    """A CLIP or SigLIP that scores each caption with its image, and none with any other.

    The score is the cosine, from -1 to 1 and for published models mostly between 0.1 and 0.4, so next to other rewards it needs
    a large weight. ``scaled``, it is the logit of the model's own loss: of CLIP the cosine times ``exp(logit_scale)``
    (published models: 100), of SigLIP also plus its bias, so that its sigmoid is the probability of a match.

    Not clamped at 0 as CLIP-S is, and without its factor. Images given to ``know_images`` are embedded once and kept on disk.

    Args:
        listener: a frozen one.
        scaled: give the logit instead of the cosine.
    """

    def __init__(self, listener: ClipListener, *, scaled: bool = False) -> None:
        self.listener, self.name, self.scaled = listener, listener.name, scaled

    @property
    def model(self) -> Any:
        """The encoder."""
        return self.listener.model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.listener.device

    def to(self, device: torch.device | str) -> DualMatcher:
        """Move the model; returns the matcher."""
        self.listener.to(device)
        return self

    def describe(self) -> dict[str, Any]:
        """The listener's description, and the scale."""
        return self.listener.describe() | {"scale": "logit" if self.scaled else "cosine"}

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """RGB images -> ``{"pixel_values": [B, 3, height, width]}``, on the CPU."""
        return self.listener.process(images)

    def know_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Embed the images, or read their embeddings from disk."""
        self.listener.cache_images(dataset)

    def match(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient: cosine or logit.

        Raises:
            UsageError: there are neither tensors nor embeddings of an image.
        """
        with torch.no_grad():
            images = self.listener.encode_images(rollout.batch)
            texts = self.listener.encode_texts(rollout.texts)
            cosines = (images[rollout.image.to(images.device)].float() * texts.float()).sum(dim=1)
            if self.scaled:
                bias = getattr(self.model, "logit_bias", None)
                cosines = cosines * self.model.logit_scale.float().exp() + (0.0 if bias is None else bias.float())
            return cosines.to(rollout.image.device)
