"""Several processes at one collection: each is handed batches, journals them, and tells; the others outlive one that dies.

Work is handed out over a pipe a worker, never over a shared queue: a process that is killed while it holds a queue's lock
would stop all others.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tellapart.captioning.journal import Journal, read_journal
from tellapart.captioning.outputs.base import Output
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.serve import Build, Tell, serve
from tellapart.errors import UsageError

logger = logging.getLogger(__name__)

_AHEAD = 2  # batches a worker is handed beyond those its threads are reading
_PATIENCE = 10.0  # seconds that workers have to end


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
                    _bury(worker, work, tell, others=len(workers))
    finally:
        _end(workers)
    if work.left():
        raise UsageError(
            "all worker processes died (perhaps for want of memory): run the same command again to resume, with fewer "
            "--num_processes or a smaller --batch_size."
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


def _context(imports: Sequence[str]) -> ForkServerContext | SpawnContext:
    """How workers begin.

    On Linux they are forked from a process that has imported what they need, once for all of them, and that has neither
    threads nor a GPU. It is started with the first worker, and ends with this process. Elsewhere each worker imports alone.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imports))
    return context


def _start(orders: Orders, rank: int, journal: Path) -> _Worker:
    context = _context(orders.imports)
    ours, theirs = context.Pipe()
    process = context.Process(target=_begin, args=(dict(os.environ), orders, rank, journal, theirs), daemon=True)
    main = threading.current_thread() is threading.main_thread()
    # Ctrl-C goes to every process of the terminal: workers leave it to the main one, from their first moment on.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        process.start()
    finally:
        if main:
            signal.signal(signal.SIGINT, before)
    theirs.close()
    return _Worker(process, ours, journal)


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


def _bury(worker: _Worker, work: _Work, tell: Tell, *, others: int) -> None:
    """Report a dead worker and return its uncaptioned images; journalled captions it did not report are reported."""
    worker.process.join(_PATIENCE)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    code = worker.process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    logger.warning(
        "worker %s %s; its images go to %s.", worker.journal.stem.rpartition("-")[2], how, f"{others} other worker(s)"
    )
    safe: dict[str, Caption] = {}
    if worker.journal.is_file():
        Journal(worker.journal).close()
        safe = {caption.id: caption for caption in read_journal(worker.journal)[0]}
    tell([safe[item.id] for batch in worker.handed for item in batch if item.id in safe])
    work.give_back([[item for item in batch if item.id not in safe] for batch in worker.handed])


def _end(workers: Sequence[_Worker]) -> None:
    """Stop all workers and wait for them."""
    for worker in workers:
        worker.connection.close()
        worker.process.terminate()
    for worker in workers:
        worker.process.join(_PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _begin(environment: dict[str, str], orders: Orders, rank: int, journal: Path, connection: Connection) -> None:
    """Begin a worker with the environment of now, and not of when the first worker of all began."""
    os.environ.clear()
    os.environ.update(environment)
    _work(orders, rank, journal, connection)


def _work(orders: Orders, rank: int, journal: Path, connection: Connection) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that temporary files are removed
    threading.Thread(target=_die_with_parent, daemon=True).start()

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
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to be tidied up


def _die_with_parent() -> None:
    """Wait for the main process to end, in whatever way, and end with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
