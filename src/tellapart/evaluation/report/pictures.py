"""Pictures as the page holds them: small, inside the file."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

    from tellapart.data.images import ImageSource

LONGEST_SIDE = 240
"""Pixels an image is shrunk to at most."""

SMALL_SIDE = 128
"""Up to this size an image is kept as it is, pixel by pixel."""


def picture_of(source: ImageSource) -> tuple[str, bool]:
    """The image of a data set as :func:`data_uri` gives it.

    Raises:
        UsageError: it cannot be read.
    """
    return data_uri(source.open())


def data_uri(image: Image.Image) -> tuple[str, bool]:
    """``(data: address, whether it is shown pixel by pixel)``, as WebP: a hundred photos take less than a megabyte."""
    small = max(image.size) <= SMALL_SIDE
    picture = image.copy()
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", quality=90 if small else 72, method=6)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}", small
