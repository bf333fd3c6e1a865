"""The file of answers: nothing acknowledged is lost, nothing counts twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tellapart.errors import UsageError
from tellapart.evaluation.judge.answers import LONGEST_NAME, Answers

WRITER = """
import sys
from pathlib import Path
from tellapart.evaluation.judge.answers import Answers
answers = Answers(Path(sys.argv[1]))
key = answers.enter("Ann")
for number in range(10**6):
    answers.record(key, f"item {number}", "a", first="a")
    print(number, flush=True)
"""


@pytest.fixture
def answers(tmp_path):
    kept = Answers(tmp_path / "answers.sqlite")
    yield kept
    kept.close()


def test_an_answer_counts_once(answers):
    key = answers.enter("Ann")
    assert answers.record(key, "i", "a", first="b", seconds=1.5)
    assert not answers.record(key, "i", "b", first="b")
    (kept,) = answers.all()
    assert (kept.rater, kept.item, kept.choice, kept.first, kept.seconds) == ("Ann", "i", "a", "b", 1.5)
    assert kept.answered.endswith("+00:00")
    assert answers.record(answers.enter("Bob"), "i", "b", first="a")
    assert [(answer.rater, answer.choice) for answer in answers.all()] == [("Ann", "a"), ("Bob", "b")]


def test_only_the_last_answer_is_taken_back_and_its_number_is_never_used_again(answers):
    key, other = answers.enter("Ann"), answers.enter("Bob")
    for item in "ij":
        answers.record(key, item, "a", first="a")
    answers.record(other, "i", "a", first="a")
    first, last = answers.of(key).values()
    assert not answers.withdraw(key, first)
    assert not answers.withdraw(other, last)
    assert answers.withdraw(key, last)
    assert not answers.withdraw(key, last)
    answers.record(key, "j", "b", first="a")
    assert not answers.withdraw(key, last)
    assert {item: answer.choice for item in "ij" for answer in answers.all() if answer.item == item} == {
        "i": "a",
        "j": "b",
    }
    assert list(answers.of(key)) == ["i", "j"]
    assert max(answers.of(key).values()) > last


def test_one_person_is_one_rater(answers):
    key = answers.enter("  Zoë  Ko ")
    assert key == answers.enter("zoe\u0308 KO")
    assert answers.raters() == ["Zoë Ko"]
    assert answers.name_of(key) == "Zoë Ko"
    assert answers.name_of("nobody") is None
    answers.enter("أمل 👩‍🔬")
    for name in ("", "  ", "a\0b", "x" * (LONGEST_NAME + 1), "\ud800", "\u200b", "Ann\u202e"):
        with pytest.raises(UsageError, match="cannot be used"):
            answers.enter(name)


def test_a_killed_process_loses_no_acknowledged_answer(tmp_path):
    path = tmp_path / "answers.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    said = [int(writer.stdout.readline()) for _ in range(50)]
    os.kill(writer.pid, signal.SIGKILL)
    said += [int(line) for line in writer.stdout.read().splitlines() if line]
    writer.wait()
    kept = [answer.item for answer in Answers(path).all()]
    assert kept == [f"item {number}" for number in range(len(kept))]
    assert len(said) <= len(kept) <= len(said) + 1


def test_several_threads_and_two_servers_write_at_once(tmp_path):
    path = tmp_path / "answers.sqlite"
    one, two = Answers(path), Answers(path)
    keys = [one.enter(f"rater {number}") for number in range(4)]
    jobs = [(base, key, f"item {i}") for i in range(10) for key in keys for base in (one, two)]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda job: job[0].record(job[1], job[2], "a", first="a"), jobs))
    assert sum(done) == 40
    assert len(one.all()) == 40


def test_the_file_waits_for_the_disk(answers, tmp_path):
    assert answers._base.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert answers._base.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    (tmp_path / "text").write_text("no database, but long enough to be taken for one" * 50)
    with pytest.raises(UsageError, match="holds no answers"):
        Answers(tmp_path / "text")


@pytest.mark.parametrize("name", ["model: x", "Model:x", "\uff2d\uff4f\uff44\uff45\uff4c: x"])
def test_no_person_takes_the_name_of_a_model(answers, name):
    """In whatever letters: keys are of their compatible forms, and answers of a model would count as a person's."""
    with pytest.raises(UsageError, match="are those of models"):
        answers.enter(name)
