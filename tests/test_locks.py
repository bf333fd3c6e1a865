"""Locks: the second is refused by name, the killed one's lock is taken, with flock and without it, and nothing stays behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tellapart.errors import UsageError
from tellapart.locks import Lock, TakenError, in_turn

HOLDER = """
import fcntl, os, sys, time
from pathlib import Path
if sys.argv[2] == "without":
    def flock(*_):
        raise OSError(95, "Operation not supported")
    fcntl.flock = flock
from tellapart.locks import Lock
lock = Lock(Path(sys.argv[1]), "training into")
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["flock", "without"])
def kind(request, monkeypatch):
    """With the system's locks, and as on a file system that has none."""
    if request.param == "without":
        fcntl = pytest.importorskip("fcntl")

        def flock(*_):
            raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(fcntl, "flock", flock)
    return request.param


@pytest.fixture
def holder(tmp_path, kind):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run" / ".lock"), kind], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == f"{process.pid}\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_is_refused_with_the_first_ones_process_and_host(tmp_path, holder):
    sentence = (
        f"another process is training into {tmp_path / 'run'} (process {holder.pid} on {socket.gethostname()}): "
        "wait for it, or choose another output."
    )
    with pytest.raises(TakenError) as refused:
        Lock(tmp_path / "run" / ".lock", "training into", patience=0.1)
    assert str(refused.value) == sentence


def test_the_lock_of_a_killed_process_is_told_and_taken(tmp_path, holder, caplog):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with Lock(tmp_path / "run" / ".lock", "training into"):
        assert f"was locked by process {holder.pid} on {socket.gethostname()}, which was killed" in caplog.text
        with pytest.raises(UsageError, match=f"process {os.getpid()} on"):
            Lock(tmp_path / "run" / ".lock", "training into", patience=0.0)
    caplog.clear()
    Lock(tmp_path / "run" / ".lock", "training into").release()
    assert caplog.text == "", "one that was released was not killed"


def test_nothing_stays_behind(tmp_path, kind):
    with Lock(tmp_path / "a" / "b" / ".lock", "training into") as lock:
        assert (tmp_path / "a" / "b" / ".lock.owner").is_file()
    lock.release()  # a second time
    assert list(tmp_path.iterdir()) == []
    with Lock(tmp_path / "a" / "b" / ".lock", "training into"):
        (tmp_path / "a" / "b" / "run.json").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["run.json"]


def test_a_holder_on_another_host_may_be_declared_dead_by_hand(tmp_path):
    with Lock(tmp_path / ".lock", "training into"):
        (tmp_path / ".lock.owner").write_text(json.dumps({"pid": 7, "host": "elsewhere"}))
        with pytest.raises(
            UsageError, match=r"process 7 on elsewhere.*or delete .*\.lock\* if that process has ended\.$"
        ):
            Lock(tmp_path / ".lock", "training into", patience=0.0)


def test_the_folder_may_vanish_meanwhile(tmp_path):
    with Lock(tmp_path / "run" / ".lock", "training into"):
        for path in (tmp_path / "run").iterdir():
            path.unlink()
        (tmp_path / "run").rmdir()


def test_what_is_made_in_turn_is_waited_for(tmp_path, caplog):
    order = []

    def second():
        with in_turn(tmp_path / ".thing.lock", tmp_path / "thing"):
            order.append("second")

    with in_turn(tmp_path / ".thing.lock", tmp_path / "thing"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(1.5)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert caplog.text.count(f"waiting for process {os.getpid()} on") == 1


def test_locks_exclude_each_other_under_contention(tmp_path, kind):
    """Twelve threads, each of which holds the lock ten times: never two at once."""
    inside, most, lost = [], [], []

    def work():
        for _ in range(10):
            while True:
                try:
                    lock = Lock(tmp_path / ".lock", "training into", patience=5.0)
                except TakenError:
                    lost.append(1)
                    continue
                break
            with lock:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (max(most), len(most)) == (1, 120)
    assert not Path(tmp_path / ".lock").exists()


def test_a_lock_that_was_deleted_by_hand_is_not_removed_from_its_next_holder(tmp_path):
    first = Lock(tmp_path / ".lock", "training into")
    for path in tmp_path.iterdir():
        path.unlink()
    with Lock(tmp_path / ".lock", "training into"):
        (tmp_path / ".lock.owner").write_text(json.dumps({"pid": -1, "host": "elsewhere"}))
        first.release()
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".lock.owner"]
        with pytest.raises(TakenError):
            Lock(tmp_path / ".lock", "training into", patience=0.0)
