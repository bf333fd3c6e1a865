"""Jobs in processes of their own: kept when done, reported when failed, run side by side."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from tellapart.errors import UsageError
from tellapart.sweep.jobs import Job, require, run_jobs

WORKER = """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=pathlib.Path)
parser.add_argument("--fail", action="store_true")
options = parser.parse_args()
with open(options.output_dir / "starts.txt", "a") as file:
    file.write("started\\n")
if options.fail:
    print("nothing to train on")
    sys.exit(2)
(options.output_dir / "metrics.jsonl").write_text(json.dumps({"step": 3}) + "\\n")
(options.output_dir / "done.json").write_text("{}")
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "toy_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sys.executable
    return tmp_path


def test_a_failed_job_does_not_lose_the_rest_and_done_ones_are_kept(worker: Path):
    good = [Job(f"good {i}", "toy_worker", (), worker / f"good{i}", 3) for i in range(2)]
    bad = Job("bad", "toy_worker", ("--fail",), worker / "bad", 3)
    failed = run_jobs([good[0], bad, good[1]], "toys")
    assert failed == [bad]
    assert all(job.done() and job.position() == 3 for job in good)
    with pytest.raises(UsageError, match="nothing to train on"):
        require(failed)
    # a second call runs only what is not done
    assert run_jobs([*good, bad], "toys") == [bad]
    assert (worker / "good0" / "starts.txt").read_text() == "started\n"
    assert (worker / "bad" / "starts.txt").read_text() == "started\nstarted\n"


def test_position_is_read_from_the_log_of_the_run(tmp_path: Path):
    job = Job("half", "toy_worker", (), tmp_path, 10)
    assert job.position() == 0
    (tmp_path / "metrics.jsonl").write_text('{"step": 4, "loss": 1.0}\n')
    assert job.position() == 4
    (tmp_path / "metrics.jsonl").write_text('{"step": 4, "loss": 1.0}\n{"step": 5, "lo')
    assert job.position() == 4


def test_what_only_measures_is_one_on_the_bar(tmp_path: Path):
    job = Job("timing", "toy_worker", (), tmp_path, 0)
    assert (job.size, job.position()) == (1, 0)
    (tmp_path / "done.json").touch()
    assert job.position() == 1


INTERRUPTED = """
import argparse, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=pathlib.Path)
folder = parser.parse_args().output_dir

def note(number, frame):
    with open(folder / "signals.txt", "a") as file:
        file.write(f"{number}\\n")

signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
(folder / "ready").touch()
while not (folder / "signals.txt").exists():
    time.sleep(0.02)
time.sleep(0.3)  # the step and the checkpoint, during which a second signal would be heard
"""

PARENT = """
from pathlib import Path
from tellapart.sweep.jobs import Job, run_jobs
try:
    run_jobs([Job("long", "toy_worker", (), Path("long"), 3)], "toys")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_reaches_a_training_once(tmp_path: Path, number: int):
    """As in a terminal: Ctrl-C goes to the whole foreground group, and a training that hears it twice drops its checkpoint."""
    (tmp_path / "toy_worker.py").write_text(INTERRUPTED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (tmp_path / "long" / "ready").exists() and parent.poll() is None:
        time.sleep(0.05)
    os.killpg(parent.pid, number)
    assert parent.communicate(timeout=60)[0] == "interrupted\n"
    assert (tmp_path / "long" / "signals.txt").read_text() == f"{int(signal.SIGTERM)}\n"


OUTLIVING = """
import pathlib, sys
from filelock import FileLock
from tellapart.parents import end_with
folder = pathlib.Path(sys.argv[-1])
end_with(0)
with FileLock(folder / "lock"):
    (folder / "begun").touch()
    sum(range(10**11))  # holds the interpreter's lock, so that no thread of this process runs
"""


def test_a_training_that_watches_its_parent_ends_as_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "toy_worker.py").write_text(f"from tellapart.parents import end_with\nend_with(0)\n{WORKER}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    job = Job("watching", "toy_worker", (), tmp_path / "out", 3)
    assert run_jobs([job], "toys") == []
    assert (job.folder / "log.txt").read_text() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process lives until its call returns")
def test_a_training_ends_with_a_killed_sweep(tmp_path: Path):
    """Otherwise it goes on, unseen, and holds the lock of its folder against the sweep that is started again."""
    (tmp_path / "toy_worker.py").write_text(OUTLIVING)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, env=environment)
    while not (tmp_path / "long" / "begun").exists() and parent.poll() is None:
        time.sleep(0.05)
    lock = FileLock(tmp_path / "long" / "lock", timeout=0)
    with pytest.raises(Timeout):
        lock.acquire()
    parent.kill()
    parent.wait()
    with lock.acquire(timeout=20):
        pass
