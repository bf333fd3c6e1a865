"""Several processes at one collection: each is handed batches, journals them, and tells; the others outlive one that dies.

Work is handed out over a pipe a worker, never over a shared queue: a process that is killed while it holds a queue's lock
would stop all others.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tellapart.captioning.journal import Journal, read_journal
from tellapart.captioning.outputs.base import Output
from tellapart.captioning.processes import buried, ended, started
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.serve import Build, Tell, serve
from tellapart.errors import UsageError, count_of

logger = logging.getLogger(__name__)

_AHEAD = 2  # batches a worker is handed beyond those its threads are reading


@dataclass(frozen=True)
class Orders:
    """Settings that every worker receives once.

    Args:
        build: makes its station.
        processes: how many workers there are.
        output: what writes an image's own file.
        threads: that read ahead in each worker.
        fail: stop at the first image that cannot be read.
        imports: modules that every worker needs.
    """

    build: Build
    processes: int
    output: Output | None
    threads: int
    fail: bool
    imports: tuple[str, ...] = ()


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    journal: Path
    handed: deque[list[Item]] = field(default_factory=deque)


def in_processes(orders: Orders, batches: Iterator[list[Item]], journal: Callable[[int], Path], tell: Tell) -> None:
    """Have all batches captioned by ``orders.processes`` new processes.

    Args:
        orders: for the workers.
        batches: the work; taken as it is needed.
        journal: rank -> the worker's journal.
        tell: is called with each batch.

    Raises:
        UsageError: a worker met something that the user can put right, or all of them died.
        OSError: a worker could not write.
    """
    workers = [_start(orders, rank, journal(rank)) for rank in range(orders.processes)]
    work = _Work(batches, most=orders.threads + _AHEAD)
    try:
        while workers and (work.left() or any(worker.handed for worker in workers)):
            for worker in workers:
                work.hand_to(worker)
            for ready in wait([worker.connection for worker in workers]):
                worker = next(one for one in workers if one.connection is ready)
                if not _heard(worker, tell):
                    workers.remove(worker)
                    _bury(worker, work, tell, orders.output, others=len(workers))
    finally:
        ended([(worker.process, worker.connection) for worker in workers])
    if work.left():
        raise UsageError(
            "all worker processes died (for want of memory, or of an image that ends whatever opens it): run the same command "
            "again to resume, with fewer --num_processes or a smaller --batch_size, and without images that tellapart data check "
            "calls broken."
        )


class _Work:
    """The batches that no worker has, those of dead workers first."""

    def __init__(self, batches: Iterator[list[Item]], *, most: int) -> None:
        self._batches, self._returned, self._most = batches, deque[list[Item]](), most

    def left(self) -> bool:
        if not self._returned and (batch := next(self._batches, None)) is not None:
            self._returned.append(batch)
        return bool(self._returned)

    def hand_to(self, worker: _Worker) -> None:
        while len(worker.handed) < self._most and self.left():
            batch = self._returned.popleft()
            worker.handed.append(batch)
            try:
                worker.connection.send(batch)
            except OSError:  # it has just died, which is seen when it is listened to
                return

    def give_back(self, batches: Sequence[list[Item]]) -> None:
        self._returned.extendleft(reversed([batch for batch in batches if batch]))


def _start(orders: Orders, rank: int, journal: Path) -> _Worker:
    process, connection = started(_work, (orders, rank, journal), orders.imports)
    return _Worker(process, connection, journal)


def _heard(worker: _Worker, tell: Tell) -> bool:
    """Take one message; false if the worker is dead."""
    try:
        message = worker.connection.recv()
    except (EOFError, OSError):
        return False
    if isinstance(message, Exception):
        raise message
    if message:
        worker.handed.popleft()
    tell(message)
    return True


def _bury(worker: _Worker, work: _Work, tell: Tell, output: Output | None, *, others: int) -> None:
    """Report a dead worker and return its uncaptioned images.

    Journalled captions that it did not report are reported, and their own files written: it may have died before that.
    """
    how = buried(worker.process)
    logger.warning(
        "worker %s %s; its images go to %s.",
        worker.journal.stem.rpartition("-")[2],
        how,
        count_of(others, "other worker"),
    )
    safe: dict[str, Caption] = {}
    if worker.journal.is_file():
        Journal(worker.journal).close()
        # An error may be that of an earlier start, after which the image was repaired: it is tried again.
        safe = {caption.id: caption for caption in read_journal(worker.journal)[0] if caption.error is None}
    handed = [item for batch in worker.handed for item in batch]
    told = [(item, safe[item.id]) for item in handed if item.id in safe and safe[item.id].is_of(item)]
    for item, caption in told:
        if output is not None:
            output.apply(item, caption)
    tell([caption for _, caption in told])
    done = {caption.id for _, caption in told}
    work.give_back([[item for item in batch if item.id not in done] for batch in worker.handed])


def _work(orders: Orders, rank: int, journal: Path, connection: Connection) -> None:
    """A worker's life."""

    def take(block: bool) -> list[Item] | None:
        return connection.recv() if block or connection.poll() else None

    def send(value: Any) -> None:
        try:
            connection.send(value)
        except OSError:  # the other end is closed
            sys.exit(1)

    try:
        with Journal(journal) as opened:
            station = orders.build(rank, orders.processes)
            threads, fail = orders.threads, orders.fail
            serve(take, station, send, journal=opened, output=orders.output, threads=threads, fail=fail)
    except EOFError:  # nothing more to do
        return
    except (UsageError, OSError) as error:
        send(error)
