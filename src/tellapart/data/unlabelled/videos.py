"""Key-frames of videos as images, through PyAV: found by the flags of packets, without decoding; decoded one at a time."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tellapart.data.images import printable
from tellapart.data.sniff import ImageError, unreadable
from tellapart.data.unlabelled.remembered import remembered
from tellapart.data.video import opened, picture_of

if TYPE_CHECKING:
    from PIL import Image


def moment(seconds: float) -> str:
    """A time as in the fragment of an address: ``t=12.480``."""
    return f"t={seconds:.3f}"


@dataclass(frozen=True)
class KeyFrame:
    """A key-frame of a video.

    Args:
        video: the file.
        stamp: its presentation time stamp, in the stream's unit.
        seconds: the same from the stream's start.
    """

    video: Path
    stamp: int
    seconds: float

    @property
    def name(self) -> str:
        """The video and the time."""
        return printable(f"{self.video}#{moment(self.seconds)}")

    def open(self) -> Image.Image:
        """The frame in RGB, upright.

        Raises:
            ImageError: the video cannot be opened, has no such frame any more, or the frame is damaged.
        """
        with opened(self.video, self.name) as (container, stream):
            stream.codec_context.skip_frame = "NONKEY"
            frame = self._found(container, stream)
            if frame is not None:
                return picture_of(frame, self.name).image
        raise unreadable(self.name, "the video has no key-frame at this time")

    def _found(self, container: Any, stream: Any) -> Any:
        """The decoded frame of this stamp, sought from ever further back; from the start, the first one at or after it.

        A seek may land behind its target (MPEG program streams have no index), and the stamps of the first frames after it
        be guesses. So a frame of just this stamp is looked for; a later one counts only where all before it were seen.
        """
        start, second, back = stream.start_time or 0, max(1, round(1 / stream.time_base)), 0
        while True:
            container.seek(min(self.stamp, max(self.stamp - back, start)), stream=stream)
            frames = (frame for frame in container.decode(stream) if frame.pts is not None)
            frame = next((frame for frame in frames if frame.pts >= self.stamp), None)
            if self.stamp - back <= start or (frame is not None and frame.pts == self.stamp):
                return frame
            back = 2 * back or second

    def read(self) -> bytes:
        """The frame as a PNG file."""
        buffer = io.BytesIO()
        self.open().save(buffer, format="PNG")
        return buffer.getvalue()

    def fingerprint(self) -> str:
        """SHA-256 of size and pixels."""
        image = self.open()
        return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()


def key_frames(video: Path, *, seconds_between: float = 0.0) -> tuple[np.ndarray, np.ndarray, str | None]:
    """``[M]`` time stamps and ``[M]`` seconds of a video's key-frames, and a sentence if it cannot be read.

    Args:
        video: the file.
        seconds_between: key-frames sooner than this after the last one taken are left out.

    Raises:
        UsageError: PyAV is not installed.
    """
    try:
        found = remembered("videos", video, _stamps)
    except OSError as error:
        found = {"problem": f"{video} cannot be read ({error.strerror}): check the file and its permissions."}
    stamps = np.array(found.get("stamps", ()), dtype=np.int64)
    numerator, denominator = found.get("unit", (1, 1))
    seconds = (stamps - found.get("start", 0)) * (numerator / denominator)
    kept = _thinned(seconds, seconds_between)
    return stamps[kept], seconds[kept], found.get("problem")


def _stamps(video: Path) -> dict[str, Any]:
    """Time stamps of the key-frames, ascending, the stream's first one, and its unit as a fraction of seconds."""
    stamps: set[int] = set()
    try:
        with opened(video, str(video)) as (container, stream):
            for packet in container.demux(stream):
                if packet.is_keyframe and not packet.is_discard and packet.pts is not None:
                    stamps.add(packet.pts)
            unit, start = stream.time_base, stream.start_time or 0
    except ImageError as error:
        return {"problem": str(error)}
    if not stamps:
        return {"problem": f"{video} has no key-frames: it is empty or damaged; remove it, or get it again."}
    return {
        "stamps": sorted(stamps),
        "start": start,
        "unit": [unit.numerator, unit.denominator],
        "problem": None,
    }


def _thinned(seconds: np.ndarray, between: float) -> list[int]:
    """Places of those that are far enough apart; at least a millisecond, which ids can tell."""
    kept: list[int] = []
    for place, time in enumerate(seconds.tolist()):
        if not kept or time - seconds[kept[-1]] >= max(between, 0.001) - 1e-9:
            kept.append(place)
    return kept
