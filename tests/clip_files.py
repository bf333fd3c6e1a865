"""Small clips on disk, made by PyAV."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

KINDS = {
    "mp4": ("libx264", "yuv420p"),
    "mpeg4": ("mpeg4", "yuv420p"),
    "webm": ("libvpx", "yuv420p"),
    "mkv": ("libx264", "yuv420p"),
    "avi": ("mpeg4", "yuv420p"),
    "mpg": ("mpeg2video", "yuv420p"),
    "gif": ("gif", "rgb8"),
}
"""Kind of clip -> codec and pixel format."""


def grey_frames(count: int, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    """``[T, H, W, 3]``: frame t is of a grey that tells its number: 10 + 8 t (below 256 for 30 frames)."""
    levels = (10 + 8 * np.arange(count)).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (count, size[1], size[0], 3)).copy()


def number_of(frame: Image.Image) -> int:
    """The number of one of these frames."""
    return round((float(np.asarray(frame).mean()) - 10) / 8)


def write_clip(
    path: Path,
    frames: np.ndarray,
    kind: str | None = None,
    *,
    rate: int = 8,
    stamps: list[int] | None = None,
    gop: int = 4,
    rotation: int = 0,
    options: dict[str, str] | None = None,
) -> Path:
    """A clip of these frames at ``rate`` per second, or at ``stamps`` in units of 1 / rate."""
    import av

    codec, pixels = KINDS[kind or path.suffix[1:]]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], pixels
        stream.codec_context.gop_size = gop
        stream.codec_context.time_base = Fraction(1, rate)
        if options:
            stream.options = options
        if rotation:
            stream.set_display_rotation(rotation)
        for number, array in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            frame.pts = number if stamps is None else stamps[number]
            frame.time_base = Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_webp(path: Path, frames: np.ndarray, *, milliseconds: int | list[int] = 125) -> Path:
    """An animated WebP (or PNG, or GIF, by the ending) through Pillow."""
    pictures = [Image.fromarray(frame) for frame in frames]
    buffer = io.BytesIO()
    kind = {".webp": "WEBP", ".png": "PNG", ".gif": "GIF"}[path.suffix]
    more = {"lossless": True} if kind == "WEBP" else {}
    pictures[0].save(buffer, kind, save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0, **more)
    path.write_bytes(buffer.getvalue())
    return path


def write_sound(path: Path) -> Path:
    """A file with sound and no pictures."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        stream.layout = "mono"
        samples = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        samples.sample_rate = 16000
        for _ in range(8):
            samples.pts = None
            container.mux(stream.encode(samples))
        container.mux(stream.encode(None))
    return path
