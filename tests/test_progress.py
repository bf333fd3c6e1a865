"""Progress where standard error is not a terminal: plain lines with the time that is left."""

from __future__ import annotations

import threading
import time

import pytest

from tellapart import progress
from tellapart.progress import bar, clock, track


@pytest.fixture
def quick(monkeypatch):
    """A line every hundredth of a second."""
    monkeypatch.setattr(progress, "INTERVAL", 0.01)


def test_seconds_as_a_clock():
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3599.4, 3661)] == ["0:00", "1:00", "1:01", "59:59", "1:01:01"]


def test_a_line_tells_what_is_left_at_the_speed_of_this_block(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    running = progress._Written("training", 60, 10)
    now[0] += 140
    assert running.line() == "training: 10 of 60, 2:20 elapsed"  # no step so far: no speed
    running.advance(4)
    running.note("loss 0.41")
    # 4 steps in 140 s are 35 s a step; 46 remain: 1,610 s
    assert running.line() == "training: 14 of 60, 2:20 elapsed, 26:50 left; loss 0.41"
    running.advance(46)
    assert running.line() == "training: 60 of 60, 2:20 elapsed; loss 0.41"
    assert progress._Written("waiting", None, 0).line() == "waiting: 0:00 elapsed"


def test_long_work_writes_lines_and_a_last_one(quick, capsys):
    with bar("embedding", 3) as running:
        running.advance(3)
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert lines[-1] == "embedding: 3 of 3, 0:00 elapsed"
    assert not any("\x1b" in line for line in lines)
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_work_that_hangs_is_seen_to_hang(quick, capsys):
    with bar("waiting for world/judge", None):
        time.sleep(0.05)
    assert capsys.readouterr().err.startswith("waiting for world/judge: 0:00 elapsed\n")


def test_short_work_is_silent(capsys):
    assert list(track(range(5), "reading")) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""


def test_work_that_fails_ends_its_thread_and_adds_no_last_line(quick, capsys):
    def work():
        with bar("reading", 2):
            time.sleep(0.05)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    count = len(capsys.readouterr().err.splitlines())
    time.sleep(0.05)
    assert count > 0
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar(quick, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take a captured stream for a terminal
    with bar("reading", 2) as running:
        running.advance()
        running.note("one")
        time.sleep(0.05)
    said = capsys.readouterr().err
    assert "\x1b[" in said
    assert "elapsed" not in said
