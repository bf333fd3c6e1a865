"""Pictures of every pixel format as 8-bit RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

THINNEST = 100
"""Length by breadth of the thinnest image that a model is shown."""

LONGEST_THIN = 10_000
"""Pixels along a thin image: longer ones are scaled down to it."""


def to_rgb(image: Image.Image) -> Image.Image:
    """A loaded image in 8-bit RGB.

    Transparent pixels are laid on white: their hidden colours, which a plain conversion would bring up, are arbitrary.
    16-bit greys are divided by 257, so that white stays white. 32-bit whole numbers count as 16-bit greys where they
    fit, and are otherwise stretched, smallest to black, largest to white. Floating-point greys count as 0 to 1, or as 0
    to 255, where they fit, and are otherwise stretched; what is not finite is black.
    """
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_grey(np.asarray(image), image.info.get("transparency"))).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _grey(values: np.ndarray, transparent: object) -> np.ndarray:
    """``[height, width]`` numbers as uint8; those equal to ``transparent`` become white."""
    finite = np.isfinite(values)
    precision = np.float32 if values.dtype.kind == "u" else np.float64
    numbers: np.ndarray = np.where(finite, values, 0).astype(precision)
    least, most = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (0.0, 0.0)
    ranges = (1.0, 255.0) if values.dtype.kind == "f" else (65535.0,)
    fitting = [top for top in ranges if least >= 0 and most <= top]
    low, high = (0.0, fitting[0]) if fitting else (least, most)
    grey = np.where(finite, np.rint((numbers - low) * (255 / ((high - low) or 1))), 0).astype(np.uint8)
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return grey


def widened(image: Image.Image) -> Image.Image:
    """The image, its short side stretched where it is more than ``THINNEST`` times as long as wide.

    Models scale the short side to their own size and the long one with it: a line of 1 x 5000 pixels would become 224 x
    1,120,000.
    """
    short, long = sorted(image.size)
    if long <= THINNEST * short:
        return image
    long = min(long, LONGEST_THIN)
    short = max(min(short, long), -(-long // THINNEST))
    return image.resize((long, short) if image.width > image.height else (short, long))
