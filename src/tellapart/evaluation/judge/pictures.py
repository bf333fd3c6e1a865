"""Pictures as the page shows them: encoded anew, so that a browser never meets a file of the collection."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.files import write_bytes

if TYPE_CHECKING:
    from PIL import Image

LONGEST_SIDE = 1024
"""Pixels that a picture is shrunk to at most."""

SMALL_SIDE = 128
"""Up to this size a picture is kept pixel by pixel, as PNG."""

MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}


def write_picture(folder: Path, image: Image.Image) -> str:
    """Write an RGB image, without what its file said beside the pixels; returns the file's name.

    The name is a hash of the content, so it tells nothing about where the image comes from or what is asked about it.
    """
    picture = image.convert("RGB")
    small = max(picture.size) <= SMALL_SIDE
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    picture.info.clear()
    buffer = io.BytesIO()
    if small:
        picture.save(buffer, "PNG", optimize=True)
    else:
        picture.save(buffer, "JPEG", quality=88, optimize=True)
    name = hashlib.sha256(buffer.getvalue()).hexdigest()[:20] + (".png" if small else ".jpg")
    if not (folder / name).is_file():
        write_bytes(folder / name, buffer.getvalue())
    return name
