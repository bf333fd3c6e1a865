"""Pictures as the page holds them: small, inside the file."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from tellapart.evaluation.moving import moves, playing

if TYPE_CHECKING:
    from PIL import Image

    from tellapart.data.images import ImageSource

LONGEST_SIDE = 240
"""Pixels an image is shrunk to at most."""

LONGEST_CLIP_SIDE = 160
"""The same of a clip, whose eight frames take four times the bytes of a still; pages show it 120 pixels wide."""

SMALL_SIDE = 128
"""Up to this size an image is kept as it is, pixel by pixel."""


def picture_of(source: ImageSource) -> tuple[str, bool]:
    """The image of a data set as ``data_uri`` gives it; what moves as an animated WebP, which plays.

    Raises:
        UsageError: it cannot be read.
    """
    if not moves(source):
        return data_uri(source.open())
    data, small = playing(source, LONGEST_CLIP_SIDE, small=SMALL_SIDE)
    return f"data:image/webp;base64,{base64.b64encode(data).decode()}", small


def data_uri(image: Image.Image) -> tuple[str, bool]:
    """``(data: address, whether it is shown pixel by pixel)``, as WebP: a hundred photos take less than a megabyte."""
    small = max(image.size) <= SMALL_SIDE
    picture = image.copy()
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", quality=90 if small else 72, method=6)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}", small
