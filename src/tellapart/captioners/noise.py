"""Noise as a captioner's second input, with the image: what a conditional GAN's generator reads (Dai et al., ICCV 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tellapart.captioners.base import Encoded
from tellapart.draws import normals
from tellapart.errors import UsageError
from tellapart.ranges import PositiveFloat, PositiveInt, in_range


class ImageNoise(nn.Module):
    """Adds a learned projection of noise ``z`` to the image states that a captioner's decoder reads.

    ``states' = states + scale * rms(states) * W z``, one ``z`` for all states of an image, ``rms`` over the image's own states,
    padding left out.
    With ``z = 0`` the captioner is what it is without noise, so it can be evaluated and used without this module.

    Source: the random vector ``z`` of Dai, Fidler, Urtasun & Lin (ICCV 2017, section 3). Departure: there ``z`` and the image are
    the first state of an LSTM, which other decoders do not have.

    Args:
        width: D of the image states ``[B, P, D]``.
        size: numbers in ``z``.
        scale: size of the noise before training, as a share of the states' own size (root mean square).

    Raises:
        ValueError: a number cannot be used.

    Example::

        noise = ImageNoise.from_pretrained("runs/world_ved_g_gan/best/noise")
        encoded = captioner.encode(batch)
        varied = captioner.generate(batch, Decoding(), encoded=noise(encoded, noise.draw(batch.ids, seed=1)))
    """

    scale: Tensor

    @in_range
    def __init__(self, width: int, *, size: PositiveInt = 64, scale: PositiveFloat = 0.1) -> None:
        super().__init__()
        self.projection = nn.Linear(size, width, bias=False)
        nn.init.normal_(self.projection.weight, std=size**-0.5)  # so that W z begins with variance 1
        self.register_buffer("scale", torch.tensor(float(scale)))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ImageNoise:
        """The content of ``noise/`` in a checkpoint.

        Raises:
            UsageError: the folder holds none.
        """
        try:
            weights = load_file(Path(folder) / "model.safetensors")
            width, size = weights["projection.weight"].shape
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise UsageError(f"{folder} holds no noise: give the noise/ of a checkpoint of g_gan.") from error
        noise = cls(width, size=size)
        noise.load_state_dict(weights)
        return noise

    def draw(self, ids: Sequence[str], seed: int) -> Tensor:
        """``[B, size]`` standard normal ``z``, keyed by image id and seed."""
        drawn = normals(ids, self.projection.in_features, seed)
        return drawn.to(self.projection.weight)

    def forward(self, encoded: Encoded, z: Tensor) -> Encoded:
        """The images with noise.

        Args:
            encoded: B images.
            z: ``[B, size]``, their noise.
        """
        added = (self.scale * _size(encoded))[:, None] * self.projection(z)
        return replace(encoded, states=encoded.states + added[:, None].to(encoded.states.dtype))


def _size(encoded: Encoded) -> Tensor:
    """``[B]`` root mean squares of the real states of each image."""
    squares = encoded.states.detach().float().pow(2)
    if encoded.mask is None:
        return squares.mean(dim=(1, 2)).sqrt()
    means = squares.mean(dim=2).masked_fill(~encoded.mask, 0)
    return (means.sum(dim=1) / encoded.mask.sum(dim=1)).sqrt()
