"""Progress on standard error: bars on a terminal, elsewhere a plain line every half minute."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

from tellapart.errors import printable

T = TypeVar("T")

INTERVAL = 30.0
"""Seconds between two lines where standard error is not a terminal; shorter work writes none."""


class Bar(Protocol):
    """Progress of the running block: ``advance`` it, and ``note`` the latest figures next to it."""

    def advance(self, amount: int = 1) -> None:
        """Move on by ``amount``."""

    def note(self, text: str) -> None:
        """Show ``text`` after the count."""


class _Drawn:
    """A bar on a terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: int = 1) -> None:
        """Move on by ``amount``."""
        self._progress.advance(self._task, amount)

    def note(self, text: str) -> None:
        """Show ``text`` at the end of the bar."""
        from rich.markup import escape

        self._progress.update(self._task, note=escape(printable(text)))


class _Written:
    """Lines in a log file or a pipe: ``training: 14 of 60, 2:20 elapsed, 7:40 left; loss 0.41``.

    A thread writes them, so work that hangs shows a count that does not move instead of nothing.

    Args:
        description: of the work.
        total: of what is advanced, if known.
        done: of it before the block, which says nothing about its speed.
    """

    def __init__(self, description: str, total: int | None, done: int) -> None:
        self._description, self._total, self._before, self._done = description, total, done, done
        self._note, self._began, self._lines = "", time.monotonic(), 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_until_ended, name="progress", daemon=True)

    def __enter__(self) -> _Written:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._lines and kind is None:
            self._write()

    def advance(self, amount: int = 1) -> None:
        """Move on by ``amount``."""
        self._done += amount

    def note(self, text: str) -> None:
        """Show ``text`` at the end of the next line."""
        self._note = text

    def _write_until_ended(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._write()

    def _write(self) -> None:
        self._lines += 1
        sys.stderr.write(self.line() + "\n")
        sys.stderr.flush()

    def line(self) -> str:
        """Finished work, elapsed time, and the estimated time of the rest."""
        elapsed = time.monotonic() - self._began
        parts = [] if self._total is None else [f"{self._done} of {self._total}"]
        parts += [f"{clock(elapsed)} elapsed"]
        fresh = self._done - self._before
        if self._total is not None and fresh > 0 and self._done < self._total:
            parts.append(f"{clock(elapsed / fresh * (self._total - self._done))} left")
        told = f"{self._description}: {', '.join(parts)}"
        return printable(f"{told}; {self._note}" if self._note else told)


def clock(seconds: float) -> str:
    """Seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def bar(description: str, total: int | None, *, done: int = 0) -> Iterator[Bar]:
    """Progress while the block runs: a bar on a terminal, else a line every ``INTERVAL`` seconds.

    Args:
        description: of the work.
        total: of what is advanced, if known.
        done: of it before the block.

    Example:
        >>> with bar("reading images", 100) as shown:
        ...     for _ in range(100):
        ...         shown.advance()
    """
    from rich.console import Console

    console = Console(stderr=True)
    with (
        _drawn(console, description, total, done)
        if console.is_terminal
        else _Written(description, total, done) as running
    ):
        yield running


@contextmanager
def _drawn(console: Console, description: str, total: int | None, done: int) -> Iterator[_Drawn]:
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield _Drawn(progress, progress.add_task(escape(printable(description)), total=total, completed=done, note=""))


def track(items: Iterable[T], description: str, *, total: int | None = None) -> Iterator[T]:
    """The items, with a bar that advances by one each."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with bar(description, total) as running:
        for item in items:
            yield item
            running.advance()


@contextmanager
def quiet_loading(source: str | Path) -> Iterator[None]:
    """No bar of transformers' own while weights are read from a folder; a download from the hub keeps its bar."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled() and Path(source).is_dir()
    if shown:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
