"""The journal of a run: one line of JSON per image, appended as captions are drawn, so that a killed run can resume.

A line is whole once its newline is on disk, and counts once all lines of its batch are: the images of a batch that a kill
tore are drawn again together, as an undisturbed run draws them. What was torn at the end is cut away when the journal is
opened again. One process writes a journal, which the lock on it enforces.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from tellapart.captioning.records import Caption
from tellapart.errors import UsageError
from tellapart.locks import Lock

PATIENCE = 20.0  # seconds; the workers of a killed run notice it within about one
TURN, OF = "turn", "of"
"""Which batch of its journal a line belongs to, and how many lines that batch has."""


class Journal:
    """An append-only file of captions, open for writing.

    Args:
        path: the file; it is made if it is not there.

    Raises:
        UsageError: another process writes it and does not end, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock(path.with_name(f".{path.name}.lock"), "captioning into", patience=PATIENCE, tells=False)
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
            self._turn = _trim(self._file, path)
        except BaseException:
            self.close()
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
            OSError: the disk is full, or the file is gone; it names the file.
        """
        if not self.path.exists():  # an open file is written to even after it was deleted
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        batch, self._turn = list(captions), self._turn + 1
        about = {TURN: self._turn, OF: len(batch)}
        rest = memoryview("".join(json.dumps(caption.as_json() | about) + "\n" for caption in batch).encode())
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def close(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._lock.release()


def read_journal(path: Path) -> tuple[list[Caption], list[Caption]]:
    """The captions of a closed journal, in the order they were drawn, and those of its last batch.

    Batches that are not whole are left out.

    Raises:
        UsageError: a whole line of it cannot be read.
    """
    rows = _rows(path.read_bytes().rpartition(b"\n")[0], path)
    torn = _torn(rows)
    whole = [(caption, turn) for caption, turn, _ in rows if turn not in torn]
    last = whole[-1][1] if whole else 0
    return [caption for caption, _ in whole], [caption for caption, turn in whole if turn == last]


def _torn(rows: list[tuple[Caption, int, int]]) -> set[int]:
    """The batches that lack a line."""
    lines = Counter(turn for _, turn, _ in rows)
    return {turn for _, turn, size in rows if lines[turn] < size}


def _rows(data: bytes, path: Path) -> list[tuple[Caption, int, int]]:
    """Each line's caption, its batch, and the lines of that batch (0 in journals of before, which do not say)."""
    rows: list[tuple[Caption, int, int]] = []
    for number, line in enumerate(data.split(b"\n") if data else [], start=1):
        try:
            values = json.loads(line)
            turn, size = values.pop(TURN), values.pop(OF, 0)
            rows.append((Caption.from_json(values), turn, size))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number} is damaged ({error}): delete the line, and its batch is captioned again."
            ) from error
    return rows


def _trim(file: int, path: Path) -> int:
    """Truncate the journal after its last complete batch; returns that batch's number."""
    data = path.read_bytes()
    *lines, _ = data.split(b"\n")
    rows = _rows(b"\n".join(lines), path)
    torn = _torn(rows)
    while rows and rows[-1][1] in torn:
        rows.pop()
    whole = sum(len(line) + 1 for line in lines[: len(rows)])
    if whole < len(data):
        os.ftruncate(file, whole)
    return max((turn for _, turn, _ in rows), default=0)
