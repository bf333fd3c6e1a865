"""Processes that are forked from this one, so that a try starts with everything imported."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

HELD = {signal.SIGINT, signal.SIGTERM}
"""Signals that wait until a forked process can take them: a fork's own callbacks would print, and lose, an interrupt."""

LINGER = 40.0
"""Seconds that processes of a stopped command may take to end. The process that forks workers does so after its imports: 15
seconds on a busy machine."""


@dataclass(frozen=True)
class Outcome:
    """What came of a command.

    Args:
        code: exit code; below 0, the signal that ended it.
        out: standard output.
        err: standard error.
        seconds: it took.
        late: it did not end in time and was killed.
        orphans: processes that it had started still ran long after it.
    """

    code: int
    out: str
    err: str
    seconds: float
    late: bool = False
    orphans: bool = False

    def of_sigterm(self) -> bool:
        """Whether it ended as a process does that leaves SIGTERM alone, or that exits by the shell's number for it."""
        return self.code in (-signal.SIGTERM, 128 + signal.SIGTERM)


class Fork:
    """A command in a process of its own, which leads a group of its own.

    Args:
        work: gives the exit code.
        scratch: folder for what it prints.
        user: user and group that it runs as; None keeps this process's.
        said: descriptor for all that it prints, in place of files in ``scratch``; the outcome then has none of it.
        stdin: descriptor of its standard input; None gives it none.
    """

    def __init__(
        self,
        work: Callable[[], int],
        scratch: Path,
        *,
        user: int | None = None,
        said: int | None = None,
        stdin: int | None = None,
    ) -> None:
        self._files = [scratch / "out", scratch / "err"] if said is None else []
        self._began = time.monotonic()
        if self._files:
            scratch.mkdir(parents=True, exist_ok=True)
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _live(work, self._files if said is None else [said, said], user, stdin)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if not self.ended():
            os.kill(self.pid, number)

    def ended(self) -> bool:
        """Whether it has ended."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    @property
    def code(self) -> int:
        """The exit code of a process that has ended."""
        assert self._status is not None
        return os.waitstatus_to_exitcode(self._status)

    def wait(self, seconds: float) -> Outcome:
        """Wait for it; after ``seconds`` it is killed. Nothing that it started outlives this call."""
        until = self._began + seconds
        while not self.ended() and time.monotonic() < until:
            time.sleep(0.005)
        late = not self.ended()
        if late:
            os.kill(self.pid, signal.SIGKILL)
            _, self._status = os.waitpid(self.pid, 0)
        took = time.monotonic() - self._began
        orphans = _outlived(self.pid)
        said = [path.read_text(encoding="utf-8", errors="replace") for path in self._files] or ["", ""]
        return Outcome(self.code, said[0], said[1], took, late, orphans)


def _outlived(group: int) -> bool:
    """Wait for the processes of a group to end; true if some had to be killed."""
    until = time.monotonic() + LINGER
    while time.monotonic() < until:
        with suppress(ChildProcessError):  # those that this process has inherited
            os.waitpid(-group, os.WNOHANG)
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGUSR1)
        time.sleep(0.5)
        os.killpg(group, signal.SIGKILL)
    return True


def _live(
    work: Callable[[], int], said: Sequence[Path] | Sequence[int], user: int | None, stdin: int | None = None
) -> NoReturn:
    """The life of a forked process."""
    code = 1
    try:
        os.setsid()
        _redirect(said, stdin)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1)  # processes that outlive the command say where they are
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python itself does at its start
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        code = work()
    except KeyboardInterrupt as stop:
        if _of_command(stop):
            traceback.print_exc()
        else:  # before the command has begun, where a user would meet the start of Python
            code = 128 + signal.SIGINT
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        # A command that has ended is not interrupted any more: what would be, is the campaign.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter's end does
        with suppress(BaseException):
            sys.stdout.flush()
        with suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _of_command(stop: KeyboardInterrupt) -> bool:
    """Whether an interrupt came in code of the package."""
    frames = traceback.walk_tb(stop.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("tellapart") for frame, _ in frames)


def _redirect(said: Sequence[Path] | Sequence[int], stdin: int | None = None) -> None:
    for number, place in enumerate(said, 1):
        if isinstance(place, int):
            os.dup2(place, number)
            continue
        opened = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115


MOST_MEMORY = 3 * 2**30
"""Bytes of memory that a single try of a :class:`Server` may take."""


class Server:
    """A forked process that handles one item after the other; it is replaced when it dies, hangs or has served enough.

    Args:
        handle: item -> the faults that were found.
        seconds: that an item may take.
        scratch: folder for what it prints.
        serves: items of one process.
    """

    def __init__(self, handle: Callable[[Any], list[str]], *, seconds: float, scratch: Path, serves: int = 100) -> None:
        self._handle, self._seconds, self._scratch, self._serves = handle, seconds, scratch, serves
        self._pid, self._served = 0, 0
        self._connection: Connection | None = None

    def __call__(self, item: Any) -> list[str]:
        """The faults of one item."""
        if self._connection is None or self._served >= self._serves:
            self.close()
            self._start()
        assert self._connection is not None
        self._served += 1
        self._connection.send(item)
        if not self._connection.poll(self._seconds):
            self.close()
            return [f"took more than {self._seconds:g} s"]
        try:
            faults, memory = self._connection.recv()
        except EOFError:
            _, status = os.waitpid(self._pid, 0)
            self._pid = 0
            self.close()
            return [f"the process ended with {os.waitstatus_to_exitcode(status)}: {self._last_words()}"]
        if memory > MOST_MEMORY:
            self.close()
            return [*faults, f"took {memory / 2**30:.1f} GB"]
        return list(faults)

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._pid:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _start(self) -> None:
        self._scratch.mkdir(parents=True, exist_ok=True)
        ours, theirs = Pipe()
        self._served = 0
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            _live(lambda: self._serve(theirs), [self._scratch / "out", self._scratch / "err"], None)
        theirs.close()
        self._connection = ours

    def _serve(self, connection: Connection) -> int:
        while True:
            try:
                item = connection.recv()
            except EOFError:
                return 0
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            faults = self._handle(item)
            connection.send((faults, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)))

    def _last_words(self) -> str:
        err = self._scratch / "err"
        lines = err.read_text(errors="replace").strip().splitlines() if err.is_file() else []
        return lines[-1] if lines else "it said nothing"


def called(command: Callable[[], int], scratch: Path) -> Outcome:
    """Run a command in this process, as :class:`Fork` does in another: its exit code and what it prints.

    Meant for the inside of a :class:`Server`, whose own output it replaces meanwhile.
    """
    before = sys.stdout, sys.stderr
    scratch.mkdir(parents=True, exist_ok=True)
    _redirect([scratch / "out", scratch / "err"])
    began, code = time.monotonic(), 1
    try:
        code = command()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout, sys.stderr = before
    said = [(scratch / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err")]
    return Outcome(code, *said, time.monotonic() - began)


def threads() -> int:
    """Threads of this process, of which a fork would lose all others; that of an allocator, which is ready for it, aside."""
    names = [(path / "comm").read_text().strip() for path in Path("/proc/self/task").iterdir()]
    return len([name for name in names if name != "jemalloc_bg_thd"])


def reap_orphans() -> None:
    """Have processes whose parent was killed become children of this one, as init would adopt them, and collect them."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def emptied(folder: Path) -> Path:
    """The folder, made anew."""
    if folder.exists():
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder
