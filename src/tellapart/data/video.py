"""Frames of videos through PyAV, within bounds of size, length and time.

A file's packets are read first, without decoding: their time stamps say how long the clip is and where its key-frames are.
Of MP4, MOV, Matroska and WebM, frames are then decoded from the key-frame before each of them; of other containers, where a
seek may land anywhere, from the start. One decoded frame and the wanted ones are held in memory.
"""

from __future__ import annotations

import io
import os
import time
from array import array
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import numpy as np

from tellapart.data.decoding import opened_image, orientation, turned
from tellapart.data.pixels import to_rgb, widened
from tellapart.data.sniff import ImageError, gif_delays, unreadable
from tellapart.errors import UsageError
from tellapart.frames import middles

if TYPE_CHECKING:
    from PIL import Image

EXTENSIONS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp"})

CONTAINERS = "mov,matroska,webm,avi,gif,mpeg,mpegts,asf,flv,ogg,m4v,h264,hevc,mpegvideo"
"""Containers that are opened, as FFmpeg calls them. Playlists (HLS, concat), which name other files, stay shut."""

SEEKABLE = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"})
"""Containers with an index by which a seek lands on the key-frame before its target."""

LEAVES_OUT = frozenset({"h264", "hevc", "mpeg4", "mpeg2video"})
"""Codecs whose decoders can leave out frames that no other frame depends on, packet by packet."""

LARGEST_FILE = 2**33
"""Bytes from which a file is refused."""

MAX_PIXELS = 2**26
"""Pixels of the largest frame that is decoded: 8192 x 8192."""

MOST_FRAMES = 2_000_000
"""Frames of the longest clip: eighteen hours at 30 per second."""

SECONDS = 120.0
"""Seconds of processor time that one clip may take."""

WAIT = 120.0
"""Seconds of waiting for each read."""

SHORTFALL = 0.1
"""Share of the announced length that may be missing before a file counts as truncated."""


ANIMATIONS = frozenset({".gif", ".webp"})
"""Endings of images that may have several frames, which are frames in time."""


KEY_FRAME = "#t="
"""Between a video's name and the seconds, in the id of a key-frame."""


def damaged(name: str, why: str, remedy: str = "repair or remove it") -> ImageError:
    """The error for a file that is not a video, or a damaged one; arguments as ``unreadable``."""
    return unreadable(name, why, remedy, what="video")


def is_video(name: str) -> bool:
    """Whether a file's name has the ending of a video."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def is_animation(name: str) -> bool:
    """Whether a file's name has the ending of an image that may move."""
    return os.path.splitext(name)[1].lower() in ANIMATIONS


@dataclass(frozen=True)
class Timeline:
    """When each frame of a clip is shown.

    Args:
        stamps: ``[M]`` int64, ascending: presentation time stamps in the stream's unit.
        keys: ``[M]`` bool: whether a frame can be decoded without others.
        end: when the last one ends.
        exact: whether packets had these stamps, so that a decoded frame is known by its own.
    """

    stamps: np.ndarray
    keys: np.ndarray
    end: int
    exact: bool

    @property
    def constant_rate(self) -> bool:
        """Whether all frames are shown equally long; stamps are rounded to the stream's unit, so gaps may differ by one."""
        gaps = np.diff(self.stamps, append=self.end)
        return int(gaps.max() - gaps.min()) <= 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """Unusual properties of the video, in words."""
        known = {"one frame": len(self.stamps) == 1, "variable frame rate": not self.constant_rate}
        return tuple(kind for kind, holds in known.items() if holds)

    def shown_at_middles(self, parts: int, *, key_frames: bool = False) -> list[int]:
        """``[parts]`` places of the frames that are shown in the middle of equal parts of the time.

        Args:
            parts: how many.
            key_frames: of key-frames only: the last one before each moment.
        """
        if self.constant_rate and not key_frames:
            return middles(len(self.stamps), parts)
        places = np.flatnonzero(self.keys) if key_frames else np.arange(len(self.stamps))
        start = int(self.stamps[0])
        moments = [start + (2 * part + 1) * (self.end - start) / (2 * parts) for part in range(parts)]
        found = np.searchsorted(self.stamps[places], moments, side="right") - 1
        return [int(place) for place in places[np.maximum(found, 0)]]


class Clock:
    """Processor time of this thread since it was made.

    Args:
        name: what messages call the clip.
    """

    def __init__(self, name: str) -> None:
        self.name, self._start = name, time.thread_time()

    def check(self) -> None:
        """Raise when the time is up.

        Raises:
            ImageError: it is.
        """
        if time.thread_time() - self._start > SECONDS:
            raise damaged(self.name, f"reading it takes more than {SECONDS:g} seconds", "shorten or remove it")


@dataclass(frozen=True)
class Picture:
    """A decoded frame.

    Args:
        image: in RGB, upright.
        turned: whether the display matrix turned it.
    """

    image: Image.Image
    turned: bool


@dataclass(frozen=True)
class ExaminedClip:
    """Frames of a clip and what is unusual about its file.

    Args:
        frames: in RGB, upright.
        kinds: the unusual things, in words, such as ``variable frame rate``.
    """

    frames: list[Image.Image]
    kinds: tuple[str, ...]


def examine_frames(source: Path | bytes, name: str, num_frames: int, *, key_frames: bool = False) -> ExaminedClip:
    """``num_frames`` frames of a clip in RGB, upright, in the order of time, and what is unusual about the clip.

    They are those shown in the middle of ``num_frames`` equal parts of its time, which for a constant rate are those in the
    middle of equal numbers of frames.

    Args:
        source: a file, or its bytes.
        name: what messages call it.
        num_frames: how many; shorter clips repeat some.
        key_frames: take the last key-frame before each of these moments instead.

    Raises:
        ImageError: it is missing, truncated, damaged, too large, or has no pictures.
        UsageError: PyAV is not installed.
    """
    clock = Clock(name)
    if (data := _image_data(source, name)) is not None:
        if data.startswith(b"GIF8"):
            return _frames_of_gif(data, name, num_frames, clock)
        with opened_image(data, name) as image:
            return _frames_of_image(image, num_frames, clock)
    with opened(source, name) as (container, stream):
        timeline = read_timeline(container, stream, clock)
        places = timeline.shown_at_middles(num_frames, key_frames=key_frames)
        ascending = sorted(set(places))
        seekable = timeline.exact and container.format.name in SEEKABLE
        found = _by_seeking(container, stream, timeline, ascending, clock) if seekable else None
    if found is None:
        with opened(source, name) as (container, stream):  # again: not every container can be sought to its start
            found = _from_the_start(container, stream, timeline, ascending, clock)
    turned = ("turned by its display matrix",) if any(picture.turned for picture in found.values()) else ()
    return ExaminedClip([found[place].image for place in places], (*timeline.kinds, *turned))


def read_timeline(container: Any, stream: Any, clock: Clock) -> Timeline:
    """The time stamps of a stream, read without decoding.

    Raises:
        ImageError: there are no frames, too many, or fewer than the file announces.
    """
    stamps, keys, last, exact = array("q"), array("b"), (0, 0), True
    count = 0
    for packet in container.demux(stream):
        stamp = packet.dts if packet.pts is None else packet.pts
        if not packet.size:  # the last one, which empties the decoder
            continue
        count += 1
        if count > MOST_FRAMES:
            raise damaged(clock.name, f"it has more than {MOST_FRAMES:,} frames", "shorten or remove it")
        if count % 256 == 0:
            clock.check()
        exact = exact and packet.pts is not None
        if packet.is_discard or stamp is None:
            continue
        stamps.append(stamp)
        keys.append(packet.is_keyframe)
        last = max(last, (stamp, packet.duration or 0)) if len(stamps) > 1 else (stamp, packet.duration or 0)
    if not stamps:
        raise damaged(clock.name, "it has no frames")
    order = np.argsort(np.array(stamps, dtype=np.int64), kind="stable")
    ascending = np.array(stamps, dtype=np.int64)[order]
    gaps = np.diff(ascending)
    usual = max(1, int(np.median(gaps))) if len(gaps) else 1
    timeline = Timeline(
        ascending,
        np.array(keys, dtype=bool)[order],
        last[0] + (last[1] or usual),
        exact and bool((gaps > 0).all()),
    )
    _require_whole(container, stream, timeline, count, clock.name)
    return timeline


def _require_whole(container: Any, stream: Any, timeline: Timeline, count: int, name: str) -> None:
    """Raise where the file announces clearly more than was found in it."""
    if stream.frames:
        if count < stream.frames * (1 - SHORTFALL):
            raise damaged(name, f"it is truncated: {count:,} of {stream.frames:,} frames are there")
        return
    announced = _announced_seconds(container, stream)
    start = min(int(timeline.stamps[0]), 0)  # lengths are counted from 0, also where the first frame comes later
    found = float((timeline.end - start) * stream.time_base)
    if announced is not None and found < announced * (1 - SHORTFALL):
        raise damaged(name, f"it is truncated: {found:.2f} of {announced:.2f} seconds are there")


def _announced_seconds(container: Any, stream: Any) -> float | None:
    """How long the header says that the pictures last; None where it gives no length, or one that includes the sound."""
    tag = stream.metadata.get("DURATION", "")
    if tag.count(":") == 2:
        hours, minutes, seconds = tag.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    if len(container.streams) == 1 and container.duration and container.format.name in SEEKABLE:
        return container.duration / 1_000_000
    return None


def _by_seeking(
    container: Any, stream: Any, timeline: Timeline, places: Sequence[int], clock: Clock
) -> dict[int, Picture] | None:
    """Place -> frame for ascending places, from the key-frames before each; None where a frame is not found at its stamp."""
    found: dict[int, Picture] = {}
    keys = np.flatnonzero(timeline.keys)
    wanted = {int(timeline.stamps[place]) for place in places}
    frames: Iterator[Any] = iter(())
    at = -1  # place of the last decoded frame
    for place in places:
        before = keys[keys <= place]
        key = int(before[-1]) if len(before) else 0
        if at < key:
            container.seek(int(timeline.stamps[key]), stream=stream)
            frames = _frames(container, stream, clock, wanted)
        stamp = int(timeline.stamps[place])
        frame = next((frame for frame in frames if frame.pts is not None and frame.pts >= stamp), None)
        if frame is None or frame.pts != stamp:
            return None
        found[place], at = picture_of(frame, clock.name), place
    return found


def _from_the_start(
    container: Any, stream: Any, timeline: Timeline, places: Sequence[int], clock: Clock
) -> dict[int, Picture]:
    """The same by decoding everything before, too; a frame that the decoder left out is the next one that it gave."""
    found: dict[int, Picture] = {}
    waiting = list(reversed(places))
    last = None
    for number, frame in enumerate(_frames(container, stream, clock)):
        while waiting and _reached(frame, number, waiting[-1], timeline):
            found[waiting.pop()] = picture_of(frame, clock.name)
        if not waiting:
            return found
        last = frame
    if last is None or len(waiting) == len(places):
        raise damaged(clock.name, "none of its frames can be decoded")
    return found | dict.fromkeys(waiting, picture_of(last, clock.name))


def _reached(frame: Any, number: int, place: int, timeline: Timeline) -> bool:
    if timeline.exact and frame.pts is not None:
        return bool(frame.pts >= timeline.stamps[place])
    return number >= place


def _frames(container: Any, stream: Any, clock: Clock, wanted: Container[int] | None = None) -> Iterator[Any]:
    """Decoded frames from the container's position.

    Args:
        container: opened.
        stream: of it.
        clock: is checked at each packet.
        wanted: stamps of frames that must come. Others are left out where no frame depends on them, which changes no pixel
            of those that come.
    """
    context = stream.codec_context
    for packet in container.demux(stream):
        clock.check()
        if wanted is not None and context.name in LEAVES_OUT:
            context.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
        yield from packet.decode()


def picture_of(frame: Any, name: str) -> Picture:
    """A decoded frame in RGB, turned by its display matrix, transparency on white.

    Args:
        frame: as PyAV decodes it.
        name: what messages call it.

    Raises:
        ImageError: it is damaged or too large.
    """
    from PIL import Image

    _require_size(frame.width, frame.height, name)
    if frame.is_corrupt:
        raise damaged(name, "a frame is damaged")
    if frame.format.name == "bgra":  # of a GIF; the decoder's own order of colours needs no conversion
        pixels = frame.to_ndarray()
        whole = bool((pixels[..., 3] == 255).all())
        picture = Image.fromarray(pixels[..., 2::-1] if whole else pixels[..., [2, 1, 0, 3]])
    else:
        clear = frame.format.name in ("rgba", "argb", "abgr", "pal8") or frame.format.name.startswith("yuva")
        picture = Image.fromarray(frame.to_ndarray(format="rgba" if clear else "rgb24"))
    picture = to_rgb(picture)
    turned = bool(frame.rotation)
    return Picture(widened(picture.rotate(frame.rotation, expand=True) if turned else picture), turned)


def _require_size(width: int, height: int, name: str) -> None:
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name} has frames of {width} x {height} = {width * height:,} pixels, more than the limit of {MAX_PIXELS:,}: "
            "scale it down or remove it."
        )


def _image_data(source: Path | bytes, name: str) -> bytes | None:
    """The bytes of a GIF, WebP or PNG file; None for all other files."""
    if isinstance(source, Path):
        require_file(source, name)
    try:
        start = source[:12] if isinstance(source, bytes) else _first_bytes(source)
        if not (start.startswith((b"GIF8", b"\x89PNG")) or (start[:4] == b"RIFF" and start[8:12] == b"WEBP")):
            return None
        return source if isinstance(source, bytes) else source.read_bytes()
    except OSError as error:
        raise ImageError(f"{name} cannot be read ({error.strerror}): check the path that names it.") from error


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(12)


def _frames_of_gif(data: bytes, name: str, num_frames: int, clock: Clock) -> ExaminedClip:
    """The same of a GIF, whose frames build on each other; the delays between its blocks say when each is shown."""
    delays = gif_delays(data)
    if delays is None:
        raise damaged(name, "it is truncated")
    if not 0 < len(delays) <= MOST_FRAMES:
        raise damaged(name, f"it has {len(delays):,} frames")
    ends = np.cumsum(delays)
    timeline = Timeline(ends - delays, np.arange(len(delays)) == 0, int(ends[-1]), exact=False)
    places = timeline.shown_at_middles(num_frames)
    with opened(data, name) as (container, stream):
        found = _from_the_start(container, stream, timeline, sorted(set(places)), clock)
    return ExaminedClip([found[place].image for place in places], timeline.kinds)


def _frames_of_image(image: Image.Image, num_frames: int, clock: Clock) -> ExaminedClip:
    """The same of an opened image: gone through once for the times, and once for the frames."""
    count = int(getattr(image, "n_frames", 1))
    if count > MOST_FRAMES:
        raise damaged(clock.name, f"it has more than {MOST_FRAMES:,} frames", "shorten or remove it")
    stamps, end = np.zeros(count, dtype=np.int64), 0
    for number in range(count):
        image.seek(number)
        image.load()
        clock.check()
        stamps[number], end = end, end + max(1, round(image.info.get("duration", 0)))
    timeline = Timeline(stamps, np.ones(count, dtype=bool), end, exact=True)
    places, turn = timeline.shown_at_middles(num_frames), orientation(image)
    found = {}
    for number in sorted(set(places)):
        image.seek(number)
        image.load()
        clock.check()
        found[number] = widened(turned(to_rgb(image), turn))
    kinds = timeline.kinds if turn == 1 else (*timeline.kinds, "turned by EXIF")
    return ExaminedClip([found[place] for place in places], kinds)


@contextmanager
def opened(source: Path | bytes, name: str) -> Iterator[tuple[Any, Any]]:
    """A video's container and first stream of pictures, while the block reads them; errors become one sentence.

    Args:
        source: a file, or its bytes.
        name: what messages call it.

    Raises:
        ImageError: it cannot be opened, has no pictures, or something in the block went wrong.
        UsageError: PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise UsageError(f"{name} is a video, which needs PyAV: pip install 'tellapart[video]'.") from error
    if isinstance(source, Path):
        require_file(source, name)
    file = io.BytesIO(source) if isinstance(source, bytes) else f"file:{source}"
    limits = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
    try:
        with av.open(file, options=limits, timeout=WAIT) as container:
            if not container.streams.video:
                raise damaged(name, "the file has sound but no pictures")
            stream = container.streams.video[0]
            _require_size(stream.codec_context.width, stream.codec_context.height, name)
            stream.codec_context.thread_count = 1  # readers are processes already, and forked ones
            yield container, stream
    except UsageError:
        raise
    except Exception as error:  # decoders raise anything at all over damaged bytes
        why = " ".join(str(getattr(error, "strerror", None) or error).split()).rstrip(".") or type(error).__name__
        raise damaged(name, why) from error


def require_file(path: Path, name: str) -> None:
    """Raise unless a path is an ordinary file of a size within the limit; reading from a pipe would wait for ever.

    Raises:
        ImageError: it is not.
    """
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise ImageError(f"{name} does not exist: check the path that names it.") from error
    except (OSError, ValueError) as error:
        raise ImageError(f"{name} cannot be read ({error}): check the path that names it.") from error
    if not S_ISREG(found.st_mode):
        raise ImageError(f"{name} is not an ordinary file: remove it, or name the files in it.")
    if found.st_size > LARGEST_FILE:
        raise ImageError(f"{name} has {found.st_size:,} bytes, too many for a clip: cut or remove it.")
