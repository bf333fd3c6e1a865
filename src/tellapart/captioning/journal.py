"""The journal of a run: one line of JSON an image, appended as captions are drawn, so that a killed run goes on.

A line counts once its newline is on disk. What stands behind the last newline was torn off by a kill and is cut away when
the journal is opened again. One process writes a journal, which the lock on it enforces.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from tellapart.captioning.records import Caption
from tellapart.errors import UsageError

_PATIENCE = 20.0  # seconds; the workers of a killed run notice it within about one
TURN = "turn"


class Journal:
    """An append-only file of captions, open for writing.

    Args:
        path: the file; it is made if it is not there.

    Raises:
        UsageError: another process writes it and does not end, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            lock(self._file, path)
            self._turn = _trim(self._file, path)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, captions: Iterable[Caption]) -> None:
        """Write the captions of one batch, in one piece.

        Raises:
            OSError: the disk is full or gone; it names the file.
        """
        self._turn += 1
        lines = (json.dumps(caption.as_json() | {TURN: self._turn}) + "\n" for caption in captions)
        rest = memoryview("".join(lines).encode())
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def close(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def lock(file: int, path: Path, *, patience: float = _PATIENCE) -> None:
    """Hold the open file alone until it is closed; where the system has no such locks, nothing happens.

    Raises:
        UsageError: another process holds it, for longer than ``patience`` seconds.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise UsageError(
                    f"another process is captioning into {path.parent}: wait for it, or choose another output."
                ) from None
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return


def read_journal(path: Path) -> tuple[list[Caption], list[Caption]]:
    """The captions of a closed journal, in the order they were drawn, and those of its last batch.

    Raises:
        UsageError: a whole line of it cannot be read.
    """
    rows = _rows(path.read_bytes().rpartition(b"\n")[0], path)
    last = rows[-1][1] if rows else 0
    return [caption for caption, _ in rows], [caption for caption, turn in rows if turn == last]


def _rows(data: bytes, path: Path) -> list[tuple[Caption, int]]:
    rows: list[tuple[Caption, int]] = []
    for number, line in enumerate(data.split(b"\n") if data else [], start=1):
        try:
            values = json.loads(line)
            turn = values.pop(TURN)
            rows.append((Caption.from_json(values), turn))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number} is damaged ({error}): delete the line, and its image is captioned again."
            ) from error
    return rows


def _trim(file: int, path: Path) -> int:
    """Cut off what stands behind the last newline; the number of the last batch."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.ftruncate(file, whole)
    rows: Sequence[tuple[Caption, int]] = _rows(data[:whole][:-1], path)
    return rows[-1][1] if rows else 0
