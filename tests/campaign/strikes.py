"""What befalls a command at the n-th file event: every opening for writing, write, flush, rename and removal counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = {"os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1, "os.chmod": 1, "os.link": 2}
"""Audit event -> how many of its arguments are paths."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class FileEvents:
    """Counts the file events of this process below a folder.

    Events are known before they happen, so a strike at an event finds it undone; a strike at a write finds half of it done.

    Args:
        folder: events elsewhere do not count.
        at: the event, from 1, at which to strike; 0 strikes never.
        strike: what happens.
    """

    def __init__(self, folder: Path, at: int = 0, strike: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._folder, self._at, self._strike, self._within = f"{folder}{os.sep}", at, strike, False

    def watch(self) -> None:
        """Begin. There is no end: audit hooks stay for the life of a process."""
        sys.addaudithook(self._hear)
        write, fsync = os.write, os.fsync

        def counted_write(number: int, data: Any) -> int:
            if self._below(f"/proc/self/fd/{number}", link=True) and self._next():
                done = write(number, bytes(data)[: len(data) // 2])
                self._struck()
                return done
            return write(number, data)

        def counted_fsync(number: int) -> None:
            if self._below(f"/proc/self/fd/{number}", link=True) and self._next():
                self._struck()
            fsync(number)

        os.write, os.fsync = counted_write, counted_fsync

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            paths = (path,) if isinstance(flags, int) and flags & _WRITING else ()
        else:
            paths = arguments[: _CHANGES.get(event, 0)]
        if paths and not self._within and any(map(self._below, paths)) and self._next():
            self._struck()

    def _below(self, path: Any, link: bool = False) -> bool:
        if self._within or not isinstance(path, str | os.PathLike | bytes):
            return False
        try:
            place = os.readlink(path) if link else os.path.abspath(os.fsdecode(path))
        except OSError:
            return False
        return place.startswith(self._folder)

    def _next(self) -> bool:
        self.count += 1
        return self.count == self._at

    def _struck(self) -> None:
        self._within = True
        try:
            self._strike()
        finally:
            self._within = False


def signalling(number: int) -> Callable[[], None]:
    """Sends this process a signal."""
    return lambda: os.kill(os.getpid(), number)
