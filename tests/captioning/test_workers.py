"""Several processes: each image once, whoever dies; and none outlives the main one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from captioning.captioning_fakes import Build, items
from tellapart.captioning import workers
from tellapart.captioning.collection import Pace, caption_items, captioned
from tellapart.captioning.journal import Journal, read_journal
from tellapart.captioning.outputs.sidecars import Sidecars
from tellapart.captioning.records import Caption
from tellapart.captioning.work import Work
from tellapart.captioning.workers import _bury, _Work
from tellapart.errors import UsageError

TWO = Pace(batch_size=5, threads=1, processes=2, by_size=False, imports=("tellapart.captioners.base",))
"""Two workers, forked from a process that has imported what the fakes need: else each of them would import torch alone."""


def run(folder, count=60, pace=TWO, output=None, **options):
    """Caption ``count`` images; the images, the work and what was reported."""
    reported = []
    work = Work(folder / "out.work", {})
    try:
        build = Build(folder, **options)
        progress = caption_items(items(count), build, pace, report=reported.append, output=output, work=work)
    finally:
        work.close()
    return work, progress, reported


def drawn(work) -> Counter:
    paths = sorted(work.folder.glob("journal-*.jsonl"))
    return Counter(caption.id for path in paths for caption in read_journal(path)[0] if caption.error is None)


def test_two_processes_share_the_images(tmp_path):
    work, progress, reported = run(tmp_path, seconds=0.05)
    assert sorted(path.read_text() for path in tmp_path.glob("pid-*")) == ["0 of 2", "1 of 2"]
    assert len(list(work.folder.glob("journal-*.jsonl"))) == 2
    broken = {f"i{number}" for number in range(7, 60, 10)}
    assert (progress.drawn, set(progress.errors)) == (54, broken)
    assert drawn(work) == Counter(item.id for item in items(60) if item.id not in broken)
    rows = captioned(items(60), work, progress)
    assert [item.id for item, _ in rows] == [item.id for item in items(60) if item.id not in broken]
    assert all(caption.caption == f"caption of {item.id}" for item, caption in rows)
    assert Counter(caption.id for caption in reported) == Counter(item.id for item in items(60))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_workers_are_forked_from_one_process_that_is_not_the_main_one(tmp_path, monkeypatch):
    begun = []
    for value in ("first", "second"):  # each time with the environment of then
        monkeypatch.setenv("CAPTIONING_TEST", value)
        folder = tmp_path / value
        folder.mkdir()
        run(folder, count=20, pace=replace(TWO, imports=("json",)), seconds=0.05)
        begun += [(folder / f"begun-{rank}").read_text().split() for rank in (0, 1)]
    assert [value for _, value in begun] == ["first", "first", "second", "second"]
    assert len({parent for parent, _ in begun}) == 1
    assert begun[0][0] != str(os.getpid())


def test_the_share_of_a_dead_worker_is_not_lost(tmp_path, caplog):
    work, progress, reported = run(tmp_path, seconds=0.02, dies="i23")
    assert "was killed by signal 9; its images go to 1 other worker." in caplog.text
    assert progress.drawn == 54
    assert set(drawn(work).values()) == {1}
    assert len(drawn(work)) == 54
    assert Counter(caption.id for caption in reported).most_common(1)[0][1] == 1


@dataclass
class Deadly(Sidecars):
    """Sidecars whose writer dies before one of them, the first time."""

    folder: Path

    def __post_init__(self):
        super().__init__(self.folder / "captions", existing="overwrite", mirrored=True)

    def apply(self, item, caption):
        if item.id == "i22" and not (self.folder / "died").exists():
            (self.folder / "died").write_text("once")
            os.kill(os.getpid(), signal.SIGKILL)
        super().apply(item, caption)


def test_sidecars_of_a_worker_that_died_before_writing_them_are_written(tmp_path, caplog):
    (tmp_path / "captions").mkdir()
    for item in items(60):
        (tmp_path / "captions" / f"{item.id}.txt").write_text("old")
    run(tmp_path, seconds=0.02, output=Deadly(tmp_path))
    assert "was killed by signal 9" in caplog.text
    written = {path.stem: path.read_text() for path in (tmp_path / "captions").glob("*.txt")}
    assert written == {name: "old" if name.endswith("7") else f"caption of {name}\n" for name in written}
    assert len(written) == 60


def test_when_all_die_the_remedy_is_told_and_the_rest_is_kept(tmp_path):
    with pytest.raises(
        UsageError,
        match=r"all worker processes died .*: run the same .* to resume, .* without images that tellapart data check",
    ):
        run(tmp_path, always=True)
    assert Work(tmp_path / "out.work", {}).done == {}


def test_the_sentence_of_a_worker_is_raised(tmp_path):
    with pytest.raises(UsageError, match=r"^the model is too large: choose a smaller one\.$"):
        run(tmp_path, fails="i11")


def test_one_broken_image_may_end_the_run(tmp_path):
    pace = replace(TWO, fail=True)
    with pytest.raises(UsageError, match=r"^i7 is broken: repair it\.$"):
        run(tmp_path, pace=pace, count=12)


def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    with pytest.raises(UsageError, match="too large"):
        run(tmp_path, seconds=0.01, fails="i41")
    work, progress, _ = run(tmp_path, pace=Pace(batch_size=5, by_size=False))
    assert progress.before > 0
    assert progress.before + progress.drawn == 54
    assert set(drawn(work).values()) == {1}


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from captioning.captioning_fakes import Build, items
from captioning.test_workers import TWO
from tellapart.captioning.collection import caption_items
from tellapart.captioning.work import Work
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    work = Work(folder / "out.work", {{}})
    caption_items(items(100000), Build(folder, seconds=0.05), TWO, report=lambda caption: None, work=work)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_main_process(tmp_path, number):
    script = tmp_path / "many.py"
    script.write_text(SCRIPT.format(path=[entry for entry in sys.path if entry]))
    main = subprocess.Popen([sys.executable, script, tmp_path], start_new_session=True, stderr=subprocess.DEVNULL)
    wait_until(lambda: sum(path.stat().st_size > 0 for path in tmp_path.glob("out.work/journal-*")) == 2)
    workers = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert len(workers) == 2
    (os.killpg if number == signal.SIGINT else os.kill)(main.pid, number)  # Ctrl-C reaches the whole group
    main.wait(20)
    wait_until(lambda: not any(map(alive, workers)))
    assert set(drawn(Work(tmp_path / "out.work", {})).values()) == {1}


BUSY = """
import os, sys, time
from pathlib import Path
from tellapart.captioning.processes import started

def holds(connection):
    Path(sys.argv[1], "worker").write_text(str(os.getpid()))
    connection.send("ready")
    sum(range(10**11))  # holds the interpreter's lock, so that no thread of this process runs

if __name__ == "__main__":
    process, connection = started(holds, (), ())
    connection.recv()
    Path(sys.argv[1], "ready").touch()
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker lives until its call returns")
def test_a_worker_in_a_long_call_ends_with_the_main_process(tmp_path):
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    nothing = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    main = subprocess.Popen([sys.executable, script, tmp_path], **nothing)
    wait_until((tmp_path / "ready").exists)
    worker = int((tmp_path / "worker").read_text())
    main.kill()
    main.wait()
    try:
        wait_until(lambda: not alive(worker), seconds=5)
    finally:
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


STARTING = """
import sys
from pathlib import Path
from tellapart.captioning.processes import started

def works(connection):
    Path(sys.argv[1], "worked").touch()

if __name__ == "__main__":
    Path(sys.argv[1], "starting").touch()
    process, connection = started(works, (), ("slow",))
    connection.poll(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is imported before a worker starts")
def test_ctrl_c_ends_a_command_whose_workers_are_starting(tmp_path):
    """It was ignored until what they need was imported, and then forgotten."""
    (tmp_path / "starting.py").write_text(STARTING)
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_suffix('.seen').touch()\ntime.sleep(8)\n"
    )
    quiet = {
        "start_new_session": True,
        "stderr": subprocess.DEVNULL,
        "env": {**os.environ, "PYTHONPATH": str(tmp_path)},
    }
    main = subprocess.Popen([sys.executable, tmp_path / "starting.py", tmp_path], **quiet)
    wait_until((tmp_path / "slow.seen").exists)
    os.killpg(main.pid, signal.SIGINT)
    begun = time.monotonic()
    assert main.wait(60) != 0
    assert time.monotonic() - begun < 6
    time.sleep(0.5)
    assert not (tmp_path / "worked").exists()


def alive(process: int) -> bool:
    try:
        return (
            f"{process} (" in open(f"/proc/{process}/stat").read() and " Z " not in open(f"/proc/{process}/stat").read()
        )
    except OSError:
        return False


def wait_until(true, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)


def test_an_image_that_was_repaired_is_tried_though_its_worker_dies(tmp_path):
    """The error of the start before was told for it."""
    images = items(3)
    journal = tmp_path / "journal-0.jsonl"
    old = [Caption("i0", "of another file", size=1), Caption("i2", error="i2.png is not a readable image")]
    with Journal(journal) as opened:
        opened.append(old)
        opened.append([Caption("i1", "new")])
    worker = SimpleNamespace(process=None, journal=journal, handed=deque([images]))
    told, work = [], _Work(iter(()), most=2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(workers, "buried", lambda process: "was killed")
        patched.setattr(Caption, "is_of", lambda caption, item: caption.size is None)
        _bury(worker, work, told.extend, None, others=1)
    assert told == [Caption("i1", "new")]
    assert [[item.id for item in batch] for batch in work._returned] == [["i0", "i2"]]
