"""One process at a time in a folder: locks that name who holds them, on every system that filelock knows."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from tellapart.errors import UsageError
from tellapart.files import read_object, write_json

logger = logging.getLogger(__name__)

NAME = ".lock"
"""File of a folder's lock."""

WITHOUT_FLOCK = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})
"""Errors of file systems that have no locks, such as some network disks; there the existence of a file is the lock."""

PATIENCE = 1.0
"""Seconds to wait for a process that is about to leave."""

LINGERING = 20.0
"""Seconds to wait where the holder has died: its loaders and workers keep the lock until they notice."""


class TakenError(UsageError):
    """Another process holds a lock.

    Args:
        message: the sentence.
        holder: that process, in words.
    """

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class Lock:
    """A lock that a process holds until it is released or ends, in whatever way.

    A second file next to the lock's names its holder. If that one is still there when the lock is taken, the last holder
    was killed, which is logged.

    Args:
        path: file of the lock; its folder is made if it is not there.
        doing: what is done under the lock, for messages: ``training into``.
        what: the folder or file that is guarded, for messages; the lock's folder by default.
        patience: seconds to wait for another process.
        tells: whether to log that the last holder was killed.

    Raises:
        TakenError: another process holds it; the sentence names that process and its host.
    """

    def __init__(
        self, path: Path, doing: str, *, what: Path | None = None, patience: float = PATIENCE, tells: bool = True
    ) -> None:
        self.path, self.doing, self.what = path, doing, path.parent if what is None else what
        self._owner = path.with_name(f"{path.name}.owner")
        self._made = _made(path.parent)
        self._lock: BaseFileLock | None = None
        until = time.monotonic() + patience
        while (lock := _acquired(path)) is None:
            left = LINGERING - PATIENCE if _has_died(read_object(self._owner)) else 0.0
            if time.monotonic() > until + left:
                raise self._refusal()
            time.sleep(0.05)
        self._lock = lock
        before = read_object(self._owner)
        if before and tells:
            who = f"process {before.get('pid')} on {before.get('host')}"
            logger.warning("%s was locked by %s, which was killed: its lock is taken over.", self.what, who)
        try:
            write_json(self._owner, {"pid": os.getpid(), "host": socket.gethostname()})
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let others in; a second call does nothing. Neither the lock's files nor an empty folder made for them stay."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        if (
            read_object(self._owner).get("pid", os.getpid()) == os.getpid()
        ):  # else these were deleted by hand and are another's
            self._owner.unlink(missing_ok=True)
            # Removed while it is held: whoever waits for a file that is gone looks again. Windows keeps a file that is open.
            if os.name != "nt":
                self.path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # what was made under the lock stays, with its folder
            for folder in self._made:
                with suppress(FileNotFoundError):  # its holder removed it
                    folder.rmdir()

    def _refusal(self) -> TakenError:
        holder = read_object(self._owner)
        name = f"process {holder.get('pid')} on {holder.get('host')}" if holder else ""
        elsewhere = holder.get("host") not in (None, socket.gethostname())
        gone = f", or delete {self.path}* if that process has ended" if elsewhere else ""
        return TakenError(
            f"another process is {self.doing} {self.what}{f' ({name})' if name else ''}: wait for it, or choose another "
            f"output{gone}.",
            name or "another process",
        )


@contextmanager
def in_turn(path: Path, making: Path, *, tells: bool = True) -> Iterator[None]:
    """Hold a lock while the block runs; while another process holds it, wait.

    Args:
        path: file of the lock.
        making: what is made under it.
        tells: whether to log for whom it waits, and that the last holder was killed.
    """
    lock: Lock | None = None
    told = not tells
    while lock is None:
        try:
            lock = Lock(path, "making", what=making, tells=tells)
        except TakenError as taken:
            if not told:
                logger.warning("waiting for %s, which makes %s.", taken.holder, making)
            told = True
    with lock:
        yield


def _made(folder: Path) -> list[Path]:
    """Make a folder; those that were not there, the inner first."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _acquired(path: Path) -> BaseFileLock | None:
    """The lock, if it is free."""
    try:
        return _taken(FileLock(path, fallback_to_soft=False))
    except NotImplementedError:
        pass
    except OSError as error:
        if error.errno not in WITHOUT_FLOCK:
            raise
    return _taken(SoftFileLock(path.with_name(f"{path.name}.soft")))


def _taken(lock: BaseFileLock) -> BaseFileLock | None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _has_died(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that has ended; false where that cannot be known."""
    if os.name == "nt" or holder.get("host") != socket.gethostname() or not isinstance(holder.get("pid"), int):
        return False
    try:
        os.kill(holder["pid"], 0)  # asks whether it exists
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
