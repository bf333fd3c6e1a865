"""Which images are drawn together: those of like shape, within a window, so that the order of the input is never far away.

Batches follow from the whole list and the batch size, not from what is left to do: a resumed run draws in the same
company as one that was never stopped.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from tellapart.captioning.records import Item
from tellapart.data.clips import ArrayClip, ClipFile, FrameFiles, PackedClip
from tellapart.data.images import ArrayImage, ImageFile, ImageSource
from tellapart.data.remote.images import RemoteImage

WINDOW = 16
"""Batches within which images are sorted by shape."""
_ORIENTATION = 0x0112


def batches(
    items: Sequence[Item], size: int, *, done: Container[str] = (), by_size: bool = True
) -> Iterator[list[Item]]:
    """All items that are not done, in batches of at most ``size``.

    Args:
        items: the whole collection, in order.
        size: images in a batch.
        done: ids to leave out; they keep their places, so that the other batches do not change.
        by_size: batch images of like shape together, as their headers tell.
    """
    window = size * (WINDOW if by_size else 1)
    for first in range(0, len(items), window):
        chunk = items[first : first + window]
        if all(item.id in done for item in chunk):
            continue
        ordered = sorted(chunk, key=lambda item: shape_key(upright_size(item.image))) if by_size else chunk
        for start in range(0, len(ordered), size):
            batch = [item for item in ordered[start : start + size] if item.id not in done]
            if batch:
                yield batch


def shape_key(size: tuple[int, int]) -> tuple[int, int]:
    """Like shapes have neighbouring keys: first the aspect in steps of a fifth, then the number of pixels."""
    width, height = max(size[0], 1), max(size[1], 1)
    return round(math.log(width / height, 1.2)), width * height


def upright_size(image: ImageSource) -> tuple[int, int]:
    """Width and height as the image is shown, from its header; (0, 0) if that cannot be read.

    Also of clips, and of remote images, in the cache or not: their batches are then the same in every run, and none waits for
    the network. Images in memory and clips of image files are not encoded for it; of the latter the first frame counts.
    """
    from PIL import Image

    if isinstance(image, RemoteImage | ClipFile | PackedClip):
        return 0, 0
    if isinstance(image, ArrayImage | ArrayClip):
        height, width = image.array.shape[-3:-1]
        return width, height
    if isinstance(image, FrameFiles):
        return upright_size(ImageFile(image.paths[0]))
    try:
        if isinstance(image, ImageFile):
            if not image.path.is_file():  # opening a pipe would wait for ever
                return 0, 0
            header: Path | io.BytesIO = image.path
        else:
            header = io.BytesIO(image.read())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            with Image.open(header) as opened:
                width, height = opened.size
                return (height, width) if opened.getexif().get(_ORIENTATION, 1) >= 5 else (width, height)
    except Exception:  # decoders raise anything at all over damaged bytes; whoever opens the image tells
        return 0, 0
