"""Worker processes with a pipe each: how they begin, end, and end with the process that began them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from tellapart.parents import end_with

_PATIENCE = 10.0  # seconds that workers have to end


def started(work: Callable[..., None], orders: Sequence[Any], imports: Sequence[str]) -> tuple[BaseProcess, Connection]:
    """Start a process that runs ``work(*orders, connection)``; the process, and the other end of its connection.

    Args:
        work: what it does; a function that a new process can import.
        orders: arguments of it.
        imports: modules that each of several processes needs; they are imported once where the system can fork.
    """
    context = _context(imports)
    ours, theirs = context.Pipe()
    process = context.Process(target=_begin, args=(dict(os.environ), work, tuple(orders), theirs), daemon=True)
    main = threading.current_thread() is threading.main_thread()
    # Ctrl-C goes to every process of the terminal: workers leave it to the main one, from their first moment on. On Linux they
    # have that from the process that they are forked from, and starting them takes as long as its imports.
    forked = isinstance(context, ForkServerContext)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        if forked:
            from multiprocessing.forkserver import ensure_running

            ensure_running()
        else:
            process.start()
    finally:
        if main:
            signal.signal(signal.SIGINT, before)
    if forked:
        process.start()
    theirs.close()
    return process, ours


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


def buried(process: BaseProcess) -> str:
    """Wait for a process that has closed its connection, and say how it ended."""
    _join(process)
    code = process.exitcode or 0
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def ended(workers: Iterable[tuple[BaseProcess, Connection]]) -> None:
    """Stop processes and wait for them."""
    workers = list(workers)
    for process, connection in workers:
        connection.close()
        process.terminate()
    for process, _ in workers:
        _join(process)


def _join(process: BaseProcess) -> None:
    """Wait for a process that is about to end; one that takes too long is killed."""
    process.join(_PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()


def _begin(environment: dict[str, str], work: Callable[..., None], orders: tuple[Any, ...], ours: Connection) -> None:
    """Begin with the environment of now, and not of when the first worker of all began."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that temporary files are removed
    _end_with_parent()
    try:
        work(*orders, ours)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to be tidied up


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel
        end_with(sentinel, lambda: wait([sentinel]))
