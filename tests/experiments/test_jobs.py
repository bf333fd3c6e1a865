"""Jobs in processes of their own: kept when done, reported when failed, run side by side."""

import sys
from pathlib import Path

import pytest

from tellapart.errors import UsageError
from tellapart.experiments.jobs import Job, require, run_jobs

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
