"""Progress bars on standard error, in one style."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tellapart.errors import printable

T = TypeVar("T")


class Bar:
    """A running bar: ``advance`` it, and ``note`` the latest figures beside it."""

    def __init__(self, progress, task) -> None:  # type: ignore[no-untyped-def]  # rich is imported on use
        self._progress, self._task = progress, task

    def advance(self, amount: int = 1) -> None:
        """Move on by ``amount``."""
        self._progress.advance(self._task, amount)

    def note(self, text: str) -> None:
        """Show ``text`` at the end of the bar."""
        from rich.markup import escape

        self._progress.update(self._task, note=escape(printable(text)))


@contextmanager
def bar(description: str, total: int | None, *, done: int = 0) -> Iterator[Bar]:
    """A progress bar while the block runs; silent where standard error is not a terminal."""
    from rich.console import Console
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
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Bar(progress, progress.add_task(escape(printable(description)), total=total, completed=done, note=""))


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
