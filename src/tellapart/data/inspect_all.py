"""Decoding all images of a data set once, in several processes."""

from __future__ import annotations

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
from threading import Thread

from tellapart.data.images import ImageSource
from tellapart.data.inspection import Inspected, inspect
from tellapart.data.inspection_cache import InspectionCache
from tellapart.data.sniff import unreadable
from tellapart.errors import UsageError
from tellapart.progress import bar

logger = logging.getLogger(__name__)

CHUNK = 16
"""Images that a process is handed at once."""


def inspect_all(images: Sequence[ImageSource], *, num_workers: int | None = None) -> list[Inspected]:
    """Every image, inspected, in order.

    Readable images are remembered on disk (:mod:`~tellapart.data.inspection_cache`), so that the next time only new,
    changed and broken ones are decoded. An image that kills the process that decodes it counts as broken.

    Args:
        images: what to read.
        num_workers: processes that read; None takes one for each processor, 0 reads in this one.

    Raises:
        UsageError: the number of processes is negative.
    """
    if num_workers is not None and num_workers < 0:
        raise UsageError(f"num_workers is {num_workers}: give 0 or more.")
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
    """What a new process does first: ignore Ctrl-C, and watch for the death of the one it works for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block ends; processes that are begun in it never hear it, not even at their beginning."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that leave Ctrl-C to this one; when the block is left, nothing new is begun."""
    # forked on Linux, as those that read batches: starting anew would import everything again
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(os.getpid(),))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
