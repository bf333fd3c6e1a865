"""Many trainings in a few processes: finished ones are kept, a failed one does not lose the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tellapart.errors import UsageError
from tellapart.progress import bar
from tellapart.run_files import LOG_FILE

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """A module to run in a process of its own.

    Args:
        name: shown next to the bar and in errors.
        module: run as ``python -m module``.
        arguments: what follows it; ``--output_dir folder`` is added.
        folder: where it works.
        steps: how many training steps it takes, for the bar; 0 if it only measures.
        markers: the files in ``folder`` whose existence means that it is done.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    folder: Path
    steps: int
    markers: tuple[str, ...] = ("done.json",)

    def done(self) -> bool:
        """Whether an earlier run finished it."""
        return all((self.folder / marker).exists() for marker in self.markers)

    def start(self) -> subprocess.Popen[bytes]:
        """Launch it on one thread; what it says goes to ``folder/log.txt``.

        Its standard input is a pipe that is closed when this process ends.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", self.module, *self.arguments, "--output_dir", str(self.folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with open(self.folder / "log.txt", "ab") as log:
            # in a group of its own: Ctrl-C reaches it once, through run_jobs, and a second signal would cost its checkpoint
            return subprocess.Popen(  # noqa: S603  # this program
                command, stdout=log, stderr=log, stdin=subprocess.PIPE, env=environment, process_group=0
            )

    @property
    def size(self) -> int:
        """What it adds to the bar: its steps, or 1 for what only measures."""
        return max(self.steps, 1)

    def position(self) -> int:
        """How far it is on the bar: the training steps that the run's own log tells, and all of it once it is done."""
        if self.done():
            return self.size
        try:
            lines = (self.folder / LOG_FILE).read_text(encoding="utf-8").splitlines()
        except OSError:
            return 0
        for line in reversed(lines):  # the newest line may be half written
            try:
                return min(int(json.loads(line)["step"]), self.steps)
            except (ValueError, KeyError):
                continue
        return 0

    def last_words(self) -> str:
        """The last line the process wrote, to explain a failure."""
        try:
            lines = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return "no output"
        return lines[-1] if lines else "no output"


def run_jobs(jobs: Sequence[Job], description: str, *, workers: int = 2) -> list[Job]:
    """Run what is not done, ``workers`` at a time, with one bar over all their steps; returns the failed jobs.

    An interrupt (Ctrl-C, SIGTERM or a closed terminal) ends the running processes, each of which leaves a checkpoint, and is
    raised as ``KeyboardInterrupt``.
    """
    waiting = [job for job in jobs if not job.done()]
    running: dict[Job, subprocess.Popen[bytes]] = {}
    failed: list[Job] = []
    position = sum(job.position() for job in jobs)
    with _interruptible(), bar(description, sum(job.size for job in jobs), done=position) as shown:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    running[job] = job.start()
                shown.note(", ".join(job.name for job in running))
                time.sleep(POLL_SECONDS)
                for job in [job for job, process in running.items() if process.poll() is not None]:
                    if _closed(running.pop(job)) or not job.done():
                        failed.append(job)
                now = sum(job.position() for job in jobs)
                shown.advance(now - position)
                position = now
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                _closed(process)
        shown.note("")
    return failed


def _closed(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process, once it has ended; its pipe is closed after it."""
    code = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return code


@contextmanager
def _interruptible() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP end it as Ctrl-C does, so that its processes do not outlive it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # elsewhere no signal can be caught
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def require(failed: Sequence[Job]) -> None:
    """Raise if any job failed.

    Raises:
        UsageError: naming the first failed job, its last words and its log.
    """
    if failed:
        job = failed[0]
        raise UsageError(
            f"{len(failed)} of the trainings failed, first {job.name}: {job.last_words()} (see {job.folder / 'log.txt'}); "
            "run the command again to continue with the rest kept."
        )
