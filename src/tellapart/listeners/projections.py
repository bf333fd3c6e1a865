"""A CLIP of which only the two projections learn: its towers read each image once."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Self

from torch import Tensor, nn

from tellapart.errors import UsageError
from tellapart.listeners.cache import NamedPicture
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.loading import model_digest
from tellapart.listeners.trained import TrainedListener
from tellapart.types import Batch

LAYERS = ("visual_projection", "text_projection")


class ProjectionsListener(TrainedListener):
    """A listener whose image and text projections learn, while both towers and the temperature stay as they are, as PAC-S was
    trained (Sarto et al., CVPR 2023).

    What the image projection reads of an image is therefore computed once: in memory and on disk for images passed to
    ``cache_images``, else from the tensors of the batch.

    Args:
        listener: a CLIP; which of its weights learn is set here.

    Raises:
        UsageError: it has no projections, as a SigLIP, or reads clips.
    """

    def __init__(self, listener: ClipListener) -> None:
        layers = [layer for name in LAYERS if (layer := getattr(listener.model, name, None)) is not None]
        if len(layers) < len(LAYERS):
            raise UsageError(
                f"{listener.source} has no projections to train alone, as a CLIP has: set listener.train to text or all."
            )
        if listener.num_frames is not None:
            raise UsageError(
                f"{listener.source} reads clips, and only of a CLIP of images are the projections trained alone: set "
                "listener.train to text or all."
            )
        super().__init__(listener)
        listener.model.requires_grad_(False)
        for layer in layers:
            layer.requires_grad_(True)
        self._tower = _Tower.of(listener)

    def embed_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm, with gradients where they are enabled.

        Raises:
            UsageError: there are neither tensors nor cached features of an image.
        """
        return self._projected(self._tower.encode_images(batch))

    def encode_ids(self, ids: list[str]) -> Tensor:
        """``[M, D]``, unit norm, of images passed to ``cache_images`` before, by the weights as they are now.

        Raises:
            UsageError: an id is not among them.
        """
        return self._projected(self._tower.encode_ids(ids)).detach()

    def cache_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Make what the projection reads of these images available by id; errors are those of
        ``cache_images``."""
        self._tower.cache_images(dataset)

    def with_own_images(self) -> Self:
        """The same model with its weights as they are then, which knows no image yet."""
        other = copy(self)
        other._tower = self._tower.with_own_images()
        return other

    def _projected(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(self.listener.model.visual_projection(features).float(), dim=-1)


class _Tower(ClipListener):
    """The image tower alone: its embeddings are the ``[B, W]`` features that the projection reads, of any norm."""

    @classmethod
    def of(cls, listener: ClipListener) -> _Tower:
        """That of a listener; their weights are shared."""
        return cls(
            listener.model,
            listener.image_processor,
            listener.tokenizer,
            name=listener.name,
            prefix=listener.prefix,
            batch_size=listener.batch_size,
        )

    def fingerprint(self) -> str:
        """A hash of the tower and the image preprocessing; projections and texts do not matter."""
        tower = self.model.vision_model
        return model_digest(tower, tower.config.to_dict(), self.image_processor.to_dict(), "before the projection")

    def embed_images(self, pixel_values: Tensor, **shapes: Tensor) -> Tensor:
        """``[B, W]`` float32."""
        weights = next(self.model.parameters())
        return self.model.vision_model(
            pixel_values=pixel_values.to(weights.device, weights.dtype), **shapes
        ).pooler_output.float()
