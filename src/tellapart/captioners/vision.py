"""Image features from any vision model of transformers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import tellapart.clip_frames  # noqa: F401  # makes it known to transformers
from tellapart.captioners.modes import quiet
from tellapart.errors import UsageError, reason_of
from tellapart.files import existing
from tellapart.processors import read_image_processor
from tellapart.progress import quiet_loading

Pool = Literal["mean", "grid", "frames"]


class VisionFeatures:
    """The last feature map of a vision model, as it is (``grid``) or its mean over places (``mean``).

    Of clips every frame is read: ``mean`` is the mean over frames and places (the spatio-temporal mean pooling of Chen & Jin,
    CVPR 2020, section 5.1), ``frames`` the mean over places of each frame, ``grid`` all places of all frames. An image model does
    not see the order of frames, so ``mean`` has lost it; a ``clip_frames`` tower reads all frames at once.

    The map is the last hidden state: of a ResNet or ConvNeXt ``[C, h, w]``, of a transformer its patches; class and
    register tokens, which come before them, are left out. Of models of images and texts (CLIP, SigLIP) the image half is
    taken, without its pooling and its projection.

    Args:
        model: maps ``pixel_values`` to an output with ``last_hidden_state``.
        image_processor: its preprocessing.
        pool: ``mean``, ``grid`` or, of clips, ``frames``.
        frames: frames of each clip; none reads stills. A ``clip_frames`` tower has its own number.

    Raises:
        UsageError: ``pool`` and ``frames`` do not go together, or the tower reads another number of frames.

    Example::

        vision = VisionFeatures.from_pretrained("microsoft/resnet-152", frames=8)
        inputs = vision.process([clip.frames(8) for clip in clips])
        vision(inputs)  # [B, 2048]
    """

    name = "vision"

    def __init__(
        self, model: nn.Module, image_processor: Any, *, pool: Pool = "mean", frames: int | None = None
    ) -> None:
        own = getattr(model.config, "num_frames", None) if self._reads_clips(model) else None
        if own is not None and frames not in (None, own):
            raise UsageError(f"the tower reads {own} frames of each clip, not {frames}: set --frames to {own}.")
        frames = own if frames is None else frames
        if frames is not None and frames < 1:
            raise UsageError(f"--frames is {frames}: read at least 1 frame per clip.")
        if pool == "frames" and frames is None:
            raise UsageError("--pool frames keeps one vector per frame of a clip: set --frames, such as 8.")
        self.model, self.image_processor, self.pool = model.eval().requires_grad_(False), image_processor, pool
        self.num_frames: int | None = frames

    @staticmethod
    def _reads_clips(model: Any) -> bool:
        return model.config.model_type == "clip_frames"

    @property
    def loses_order(self) -> bool:
        """Whether nothing of the order of frames is left in the features."""
        return self.num_frames is not None and self.pool == "mean" and not self._reads_clips(self.model)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, pool: Pool = "mean", frames: int | None = None
    ) -> VisionFeatures:
        """Load a vision model from a folder or the hub.

        Raises:
            UsageError: there is none, it is of no known kind, or an option does not fit it.
        """
        from transformers import AutoModel

        name = existing(name_or_path, "vision model")
        try:
            with quiet(), quiet_loading(name):
                model = AutoModel.from_pretrained(name)
                image_processor = read_image_processor(name)
        except Exception as error:  # each reader has its own exceptions, and all mean that the model will not do
            reason = reason_of(error)
            raise UsageError(
                f"--model {name} cannot be read as a vision model of transformers ({reason}): name a hub id, or a folder with "
                "config.json, weights and preprocessor_config.json."
            ) from error
        return cls(getattr(model, "vision_model", model), image_processor, pool=pool, frames=frames)

    def to(self, device: torch.device) -> VisionFeatures:
        """The same on ``device``."""
        self.model.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def process(self, images: list[Any]) -> dict[str, Tensor]:
        """``pixel_values [B, 3, height, width]``, or ``[B, F, 3, height, width]`` of lists of frames.

        Raises:
            ValueError: the preprocessing leaves images of several sizes.
        """
        flat = images if self.num_frames is None else [frame for frames in images for frame in frames]
        pixels = self.image_processor(images=flat, return_tensors="pt")["pixel_values"]
        return {"pixel_values": pixels if self.num_frames is None else pixels.unflatten(0, (-1, self.num_frames))}

    @torch.inference_mode()
    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """``[B, D]`` (mean), ``[B, P, D]`` (grid; of clips ``[B, F * P, D]``) or ``[B, F, D]`` (frames), float32 on the CPU."""
        pixels = inputs["pixel_values"].to(self.device)
        if self.num_frames is None:
            states = self._places(pixels)
            return (states if self.pool == "grid" else states.mean(dim=1)).float().cpu()
        frames = self._of_frames(pixels)
        pooled = {
            "mean": lambda: frames.mean(dim=(1, 2)),
            "frames": lambda: frames.mean(dim=2),
            "grid": lambda: frames.flatten(1, 2),
        }
        return pooled[self.pool]().float().cpu()

    def _of_frames(self, pixels: Tensor) -> Tensor:
        """``[B, F, P, D]``: all places of all frames."""
        if not self._reads_clips(self.model):
            return self._places(pixels.flatten(0, 1)).unflatten(0, tuple(pixels.shape[:2]))
        states = self.model(pixel_values=pixels).last_hidden_state.unflatten(1, (pixels.shape[1], -1))
        tower: Any = self.model.tower
        return states[:, :, self._before_patches(states.shape[2], pixels, tower.config) :]

    def _places(self, pixels: Tensor) -> Tensor:
        """``[B, P, D]``: all places of images, without the tokens before them."""
        states = self.model(pixel_values=pixels).last_hidden_state
        if states.dim() == 4:
            return states.flatten(2).transpose(1, 2)
        return states[:, self._before_patches(states.shape[1], pixels, self.model.config) :]

    @staticmethod
    def _before_patches(tokens: int, pixels: Tensor, config: Any) -> int:
        """Class and register tokens."""
        size = getattr(config, "patch_size", None)
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
