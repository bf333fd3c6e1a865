"""Captions of uploaded photos, each with its rival, and how alike the photos are; without any user interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart import Apart, CaptionDataset, UsageError
from tellapart.captioning.gate import CONFUSED
from tellapart.data.dataset import Example
from tellapart.data.images import ImageFile

if TYPE_CHECKING:
    from tellapart import ClipListener

MOST = 32
"""Photos of one request."""


@dataclass(frozen=True)
class Described:
    """One photo's result.

    Args:
        photo: its number and file name.
        caption: empty where the photo cannot be read.
        rival: the photo that the caption fits next best.
        margin: cosine with the photo minus that with the rival; above 0 the caption tells them apart.
        confused: whether the rival suits the caption at least as well.
        error: why there is no caption.
    """

    photo: str
    caption: str
    rival: str = ""
    margin: float | None = None
    confused: bool = False
    error: str = ""


def as_dataset(paths: Sequence[str | Path]) -> CaptionDataset:
    """The photos, named by number and file name: uploads may share a name.

    Raises:
        UsageError: there are fewer than two photos, or too many.
    """
    if not 2 <= len(paths) <= MOST:
        raise UsageError(f"{len(paths)} photos were given: upload 2 to {MOST} that look alike.")
    photos = [Example(f"{number}: {Path(path).name}", ImageFile(Path(path))) for number, path in enumerate(paths, 1)]
    return CaptionDataset(photos, name="upload")


def describe(apart: Apart, paths: Sequence[str | Path]) -> list[Described]:
    """One result per photo, in order.

    Args:
        apart: captioner, listener and perhaps verifier.
        paths: of the photos.

    Raises:
        UsageError: fewer than two different photos can be read, or there are too many.
    """
    return [
        Described(
            photo=found.id,
            caption=found.caption,
            rival=found.rival or "",
            margin=found.margin,
            confused=CONFUSED in found.flags,
            error=found.error or "",
        )
        for found in apart(as_dataset(paths))
    ]


def likeness(listener: ClipListener, paths: Sequence[str | Path]) -> list[list[float]]:
    """``[n, n]`` cosines between the photos, -1 to 1, by the listener.

    Raises:
        UsageError: a photo cannot be read.
    """
    photos = as_dataset(paths)
    with listener.other_images():
        listener.cache_images(photos)
        vectors = listener.encode_ids(photos.ids)
    return (vectors @ vectors.T).clamp(-1, 1).tolist()
