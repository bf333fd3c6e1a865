"""Decoding images to the end, to learn whether they are broken, what is odd about them and what they look like."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any

from tellapart.data.center_crop import stored
from tellapart.data.clips import ClipFile, FrameFiles, PackedClip, sheet
from tellapart.data.dataset import CaptionDataset
from tellapart.data.decoding import examine, max_pixels
from tellapart.data.images import ImageError, ImageFile, ImageSource, PackedImage
from tellapart.data.parquet import ParquetImage
from tellapart.data.phash import Signature, near_duplicates, signature
from tellapart.data.remote.images import RemoteImage
from tellapart.data.sniff import unreadable
from tellapart.data.video import ExaminedClip
from tellapart.errors import UsageError
from tellapart.files import cache_dir, read_json, write_text
from tellapart.frames import NUM_FRAMES
from tellapart.progress import bar

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inspected:
    """Findings about one image.

    Args:
        broken: the sentence that says why it cannot be used; None if it can.
        kinds: what is unusual about it, in words (``examine``).
        content: SHA-256 of the encoded bytes.
        signature: what it looks like; None if it is all of one colour.
    """

    broken: str | None = None
    kinds: tuple[str, ...] = ()
    content: str = ""
    signature: Signature | None = None


def inspect(image: ImageSource) -> Inspected:
    """Read and decode one image, or frames of a clip; a broken file is reported, not raised."""
    try:
        if isinstance(image, ClipFile | PackedClip | FrameFiles):
            return _inspect_clip(image)
        data = image.read()
        found = examine(data, image.name)
    except ImageError as error:
        return Inspected(broken=str(error))
    content = hashlib.sha256(data).hexdigest()
    return Inspected(None, found.kinds, content, signature(found.image))


def _inspect_clip(clip: ClipFile | PackedClip | FrameFiles) -> Inspected:
    """Findings about a clip; its look is that of the sheet of its frames."""
    if isinstance(clip, FrameFiles):
        for path in clip.paths:  # also those between the ones that models are shown
            ImageFile(path).open()
        found = ExaminedClip(clip.frames(NUM_FRAMES), ())
    else:
        found = clip.examine(NUM_FRAMES)
    return Inspected(None, found.kinds, clip.fingerprint(), signature(sheet(found.frames)))


# What inspections found, on disk: images that were readable and have not changed need not be decoded again.
#
# One file for each folder that images come from, so that all data sets of the same images share it. Files are known by
# path, size and time of change, images in archives by these of the archive, all others by content. Broken images are not
# remembered: they may have been out of reach only.

VERSION = 2
"""To be raised when images are decoded, described or hashed otherwise."""


@dataclass(frozen=True)
class InspectionCache:
    """The file of findings that belongs to some images.

    Args:
        path: the file.
        keys: position of an image -> what it is known by; images that cannot be distinguished have none.
    """

    path: Path
    keys: Mapping[int, str]

    @classmethod
    def of(cls, images: Sequence[ImageSource]) -> InspectionCache:
        """The cache that belongs to these images."""
        files = [file for image in images if (file := _file(image)) is not None]
        folders = sorted({str(file.absolute().parent) for file in files})
        root = os.path.commonpath(folders) if folders else "content"
        name = hashlib.sha256(f"{VERSION} {max_pixels()} {root}".encode(errors="surrogatepass")).hexdigest()[:32]
        keys = {i: key for i, image in enumerate(images) if (key := _key(image)) is not None}
        return cls(cache_dir() / "images" / f"{name}.json", keys)

    def load(self) -> dict[int, Inspected]:
        """Position -> what is known of the image."""
        rows = self._rows()
        try:
            return {i: _inspected(rows[key]) for i, key in self.keys.items() if key in rows}
        except (TypeError, ValueError, LookupError):  # rows of somebody else
            return {}

    def add(self, found: Mapping[int, Inspected]) -> None:
        """Remember images by position, broken ones excepted."""
        new = {self.keys[i]: _row(what) for i, what in found.items() if what.broken is None and i in self.keys}
        if not new:
            return
        try:
            # Sorted: processes are done in any order.
            write_text(self.path, json.dumps(self._rows() | new, sort_keys=True))
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s): the images are decoded again next time.", self.path, error.strerror
            )

    def _rows(self) -> dict[str, Any]:
        try:
            return dict(read_json(self.path))
        except (OSError, ValueError, TypeError):  # none yet, or damaged
            return {}


def _file(image: ImageSource) -> Path | None:
    """The file that holds the image."""
    if isinstance(image, ImageFile):
        return image.path
    if isinstance(image, RemoteImage):
        return image.cached
    if isinstance(image, ParquetImage):
        return image.table
    return image.archive if isinstance(image, PackedImage) else None


def _key(image: ImageSource) -> str | None:
    file = _file(image)
    try:
        if file is None:
            return f"content {image.fingerprint()}"
        found = file.stat()
    except (OSError, ValueError, ImageError):
        return None
    return f"{file.absolute()} {found.st_size} {found.st_mtime_ns} {_part(image)}"


def _part(image: ImageSource) -> str:
    """Key of the image among those of its file, and of a clip against the same file read as an image."""
    if isinstance(image, ClipFile):
        return f"clip {image.sampling}"
    if isinstance(image, PackedClip):
        return f"clip {image.sampling} {image.offset} {image.size} {image.member}"
    if isinstance(image, PackedImage):
        return f"{image.offset} {image.size} {image.member}"
    return f"{image.group} {image.row} {image.column}" if isinstance(image, ParquetImage) else ""


def _row(found: Inspected) -> list[Any]:
    look = found.signature
    shown = None if look is None else [f"{look.hash:016x}", base64.b64encode(look.thumbnail).decode()]
    return [list(found.kinds), found.content, shown]


def _inspected(row: Any) -> Inspected:
    kinds, content, shown = row
    look = None if shown is None else Signature(int(shown[0], 16), base64.b64decode(shown[1]))
    return Inspected(None, tuple(kinds), content, look)


# Decoding all images of a data set once, in several processes.

CHUNK = 16
"""Images that a process is handed at once."""


def inspect_all(images: Sequence[ImageSource], *, num_workers: int | None = None) -> list[Inspected]:
    """Every image, inspected, in order.

    Readable images are remembered on disk, so that the next time only new,
    changed and broken ones are decoded. An image that kills the process that decodes it counts as broken.

    Args:
        images: what to read.
        num_workers: processes that read; None takes one for each processor, 0 reads in this one.

    Raises:
        UsageError: the number of processes is negative.
    """
    if num_workers is not None and num_workers < 0:
        raise UsageError(f"num_workers is {num_workers}: give 0 or more.")
    images = [stored(image) for image in images]  # whether an image can be read does not depend on a crop
    cache = InspectionCache.of(images)
    known = cache.load()
    new = {i: image for i, image in enumerate(images) if i not in known}
    workers = min(processors() if num_workers is None else num_workers, -(-len(new) // CHUNK))
    found: dict[int, Inspected] = {}
    try:
        with bar("reading images", len(images), done=len(known)) as shown:
            for i, what in _spread(new, workers) if workers > 0 else _here(new):
                found[i] = what
                shown.advance()
    finally:
        cache.add(found)  # also when interrupted
    known |= found
    return [known[i] for i in range(len(images))]


def processors() -> int:
    """Processors for this process: those it may use, divided by the processes of one training on this machine."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _here(images: Mapping[int, ImageSource]) -> Iterator[tuple[int, Inspected]]:
    for i, image in images.items():
        yield i, inspect(image)


def _spread(images: Mapping[int, ImageSource], workers: int) -> Iterator[tuple[int, Inspected]]:
    """The same in several processes, which may die of an image."""
    waiting = dict(images)
    while waiting:
        for i, found in _until_broken(waiting, workers, CHUNK):
            del waiting[i]
            yield i, found
        if waiting:
            logger.warning("a process that decodes images died: looking for the image that it died of.")
        # whichever image it was, it is among the first that are left: each of these gets a process of its own
        for i in list(waiting)[: 2 * (workers + 1) * CHUNK]:
            image = waiting.pop(i)
            alone = dict(_until_broken({i: image}, 1, 1))
            crashed = str(unreadable(image.name, "the process that decoded it crashed or ran out of memory"))
            yield i, alone.get(i, Inspected(broken=crashed))


def _until_broken(images: Mapping[int, ImageSource], workers: int, size: int) -> Iterator[tuple[int, Inspected]]:
    """Those of the images that were inspected before a process died, if one does."""
    places = list(images)
    with _processes(workers) as pool:
        chunks = [places[start : start + size] for start in range(0, len(places), size)]
        try:
            with _uninterrupted():
                pending = {pool.submit(_inspect, [images[i] for i in chunk]): chunk for chunk in chunks}
            for done in as_completed(pending):
                yield from zip(pending[done], done.result(), strict=True)
        except BrokenProcessPool:
            return


def _inspect(images: Sequence[ImageSource]) -> list[Inspected]:
    return [inspect(image) for image in images]


def _begin(parent: int) -> None:
    """First steps of a new process: ignore Ctrl-C, and watch for the death of the one it works for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block ends; a process that is forked in it survives Ctrl-C from its beginning.

    The handler is replaced. Blocking the signal in this thread is not enough: another thread of the process may receive it,
    and Python then interrupts this one all the same.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or current_thread() is not main_thread():
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that leave Ctrl-C to this one; when the block is left, nothing new is begun."""
    # forked on Linux, as those that read batches: starting afresh would import everything again
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(os.getpid(),))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


# Images of one data set that look the same, by id.


def look_alikes(dataset: CaptionDataset, *, num_workers: int | None = None) -> list[list[str]]:
    """Groups of ids whose pictures look the same: copies that were scaled, compressed again or made a little brighter.

    Every image is decoded once, and what was found is remembered. Looks are
    compared in greys (``tellapart.data.phash``): this is for photos; drawings that differ in a colour or a small part
    count as copies.

    Args:
        dataset: the images; those that cannot be read are in no group.
        num_workers: processes that decode; None takes one for each processor, 0 decodes in this one.
    """
    inspected = inspect_all([example.image for example in dataset], num_workers=num_workers)
    ids = dataset.ids
    return [[ids[i] for i in group] for group in near_duplicates([found.signature for found in inspected])]
