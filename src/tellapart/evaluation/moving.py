"""Clips on pages: a few frames as an animated WebP, which browsers play without a script."""

from __future__ import annotations

from typing import TypeGuard

from tellapart.data.center_crop import stored
from tellapart.data.clips import Animation, as_webp
from tellapart.data.decoding import has_frames
from tellapart.data.images import ImageSource
from tellapart.frames import NUM_FRAMES, Clip, is_clip

SECONDS = 2.0
"""How long a clip plays before it begins again."""


def is_animation(image: ImageSource) -> bool:
    """Whether an image is a GIF or WebP file among images, of which models of images read the first frame."""
    return isinstance(stored(image), Animation)


def moves(image: ImageSource) -> TypeGuard[Clip]:
    """Whether pages play an image: a clip, or a GIF or WebP file among images that has several frames.

    Raises:
        UsageError: such a file cannot be read.
    """
    return has_frames(image.read(), image.name) if is_animation(image) else is_clip(image)


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
