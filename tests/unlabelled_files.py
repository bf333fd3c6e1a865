"""Tars and videos without captions, whole and damaged, made on the spot; also imported by the tests of the commands."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def jpeg(seed: int) -> bytes:
    """A picture of its own for each number."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((48, 40), Image.Resampling.NEAREST).save(buffer, "JPEG")
    return buffer.getvalue()


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def shard(path: Path, first: int, count: int) -> Path:
    """Pictures ``first`` and following in the manner of img2dataset, with a .json beside each."""
    members: dict[str, bytes] = {}
    for i in range(first, first + count):
        members |= {f"{i:05}.jpg": jpeg(i), f"{i:05}.json": b"{}"}
    return write_tar(path, members)


def cut(path: Path, keep: float) -> Path:
    """The file without its end."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def write_video(
    path: Path,
    *,
    seconds: int = 4,
    rate: int = 10,
    every: int = 5,
    grey: int = 5,
    codec: str = "mpeg4",
    b_frames: int = 0,
) -> Path:
    """Frame i is all of ``grey`` times i; each ``every``-th frame and no other is a key-frame."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={"sc_threshold": "1000000000"})
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        stream.gop_size, stream.codec_context.max_b_frames = every, b_frames
        for i in range(seconds * rate):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), grey * i, dtype=np.uint8), format="rgb24")
            frame.pts = i
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path
