"""Image features from any vision model of transformers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tellapart.captioners.modes import quiet
from tellapart.errors import UsageError, reason_of
from tellapart.progress import quiet_loading

if TYPE_CHECKING:
    from PIL import Image


class VisionFeatures:
    """The last feature map of a vision model, as it is (``grid``) or its mean over places (``mean``).

    The map is the last hidden state: of a ResNet or ConvNeXt ``[C, h, w]``, of a transformer its patches; class and
    register tokens, which stand before them, are left out. Of models of images and texts (CLIP, SigLIP) the image half is
    taken, without its pooling and its projection.

    Args:
        model: maps ``pixel_values`` to an output with ``last_hidden_state``.
        image_processor: its preprocessing.
        pool: ``mean`` or ``grid``.
    """

    name = "vision"

    def __init__(self, model: nn.Module, image_processor: Any, *, pool: Literal["mean", "grid"] = "mean") -> None:
        self.model, self.image_processor, self.pool = model.eval().requires_grad_(False), image_processor, pool

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, *, pool: Literal["mean", "grid"] = "mean") -> VisionFeatures:
        """Load a vision model from a folder or the hub.

        Raises:
            UsageError: there is none, or it is of no known kind.
        """
        from transformers import AutoImageProcessor, AutoModel

        name = str(name_or_path)
        try:
            with quiet(), quiet_loading(name):
                model = AutoModel.from_pretrained(name)
                image_processor = AutoImageProcessor.from_pretrained(name, backend="pil")
        except Exception as error:  # each reader has its own exceptions, and all mean that the model will not do
            reason = reason_of(error)
            raise UsageError(
                f"--model {name} cannot be read as a vision model of transformers ({reason}): name a hub id, or a folder with "
                "config.json, weights and preprocessor_config.json."
            ) from error
        return cls(getattr(model, "vision_model", model), image_processor, pool=pool)

    def to(self, device: torch.device) -> VisionFeatures:
        """The same on ``device``."""
        self.model.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """``pixel_values [B, 3, height, width]``.

        Raises:
            ValueError: the preprocessing leaves images of several sizes.
        """
        return {"pixel_values": self.image_processor(images=images, return_tensors="pt")["pixel_values"]}

    @torch.inference_mode()
    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """``[B, D]`` (mean) or ``[B, P, D]`` (grid), float32 on the CPU."""
        pixels = inputs["pixel_values"].to(self.device)
        states = self.model(pixel_values=pixels).last_hidden_state
        if states.dim() == 4:
            states = states.flatten(2).transpose(1, 2)
        else:
            states = states[:, self._before_patches(states.shape[1], pixels) :]
        return (states if self.pool == "grid" else states.mean(dim=1)).float().cpu()

    def _before_patches(self, tokens: int, pixels: Tensor) -> int:
        """Class and register tokens."""
        size = getattr(self.model.config, "patch_size", None)
        if size is None:
            return 0
        height, width = (size, size) if isinstance(size, int) else size
        return max(0, tokens - (pixels.shape[-2] // height) * (pixels.shape[-1] // width))

    def fingerprint(self) -> str:
        """A hash of the weights and the preprocessing."""
        digest = hashlib.sha256(json.dumps(self.image_processor.to_dict(), sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
