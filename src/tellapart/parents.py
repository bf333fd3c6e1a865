"""Processes that end with the process that started them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


def end_with(pipe: int, wait: Callable[[], object] | None = None) -> None:
    """End this process, in whatever way its parent ends, and at once.

    A thread alone would have to wait for calls that hold the interpreter's lock, such as the loading of a large model. So on
    Linux the kernel sends SIGIO, which ends a process, when the parent's end of a pipe is closed.

    Args:
        pipe: descriptor of an end of a pipe whose other end only the parent has, which never writes into it.
        wait: returns when the pipe is closed; reads from it by default.

    Example::

        end_with(0)  # in a process started with stdin=subprocess.PIPE
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        # Not sys.stdin: a thread that holds the lock of a file object is a fatal error when the interpreter ends.
        os.read(pipe, 1) if wait is None else wait()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()  # also for a parent that has ended before
