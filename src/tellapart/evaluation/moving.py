"""Clips on pages: a few frames as an animated WebP, which browsers play without a script."""

from __future__ import annotations

from tellapart.data.clips import as_webp
from tellapart.frames import NUM_FRAMES, Clip

SECONDS = 2.0
"""How long a clip plays before it begins again."""


def playing(clip: Clip, longest: int, *, small: int) -> tuple[bytes, bool]:
    """``(animated WebP, whether it is shown pixel by pixel)``.

    Args:
        clip: of it, as many frames are shown as models read by default.
        longest: pixels of the longest side that frames are shrunk to.
        small: up to this side every pixel is kept; larger frames are compressed with loss.

    Raises:
        UsageError: the clip cannot be read.
    """
    frames = [frame.copy() for frame in clip.frames(NUM_FRAMES)]
    pixelated = max(frames[0].size) <= small
    for frame in frames:
        frame.thumbnail((longest, longest))
    return as_webp(frames, seconds=SECONDS, lossless=pixelated), pixelated
