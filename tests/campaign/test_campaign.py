"""The campaign itself: a few tries of it find nothing in the package, and everything in a command with planted faults."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tellapart.files import write_text

from . import captions, data_files, images, recipes
from .forks import Fork, Outcome, Server
from .fuzz import drawn
from .given import Given
from .ground import Ground
from .kills import CODES
from .snapshot import content_of, differences
from .strikes import signalling
from .targets import Place, Target
from .tries import Kind, Room, Row, reproduce, table
from .verdict import faults_of, left_over

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")

LINES = [f"{i}\n" for i in range(6)]


@pytest.fixture
def ground(tmp_path, materials) -> Ground:
    return Ground(Room(Given(materials.photos.parent, materials, {}), tmp_path, seed=0))


def writing(place: Place) -> int:
    """A sound command: rewrites its file line by line, and goes on with what is there."""
    path = place.out / "lines.txt"
    there = path.read_text() if path.is_file() else ""
    for line in LINES[there.count("\n") :]:
        there += line
        write_text(path, there)
    return 0


def torn(place: Place) -> int:
    """Appends to its file in two writes, and takes a line for whole that is not."""
    place.out.mkdir(exist_ok=True)
    path = place.out / "lines.txt"
    there = path.read_text().splitlines() if path.is_file() else []
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for line in LINES[len(there) :]:
        os.write(opened, line[:1].encode())
        os.write(opened, line[1:].encode())
    return 0


def tracing(place: Place) -> int:
    raise RuntimeError("planted")


def littering(place: Place) -> int:
    place.out.mkdir(exist_ok=True)
    (place.out / ".x.abcd1234").touch()
    return 0


def killed(ground: Ground, target: Target, at: int) -> list[str]:
    """The faults after a kill at an event."""
    ground.usual(target)
    ground.clear(target)
    outcome = ground.struck(target.run, at, signalling(signal.SIGKILL)).wait(20)
    return faults_of(outcome, CODES[signal.SIGKILL]) or ground.finished(target)


def test_kills_of_a_sound_command_lose_nothing(ground):
    target = Target("writing", writing)
    events = ground.usual(target).events
    assert events > 20
    assert [killed(ground, target, at) for at in range(1, events + 1, 4)] == [[]] * len(range(1, events + 1, 4))


def test_a_planted_loss_is_found(ground):
    target = Target("torn", torn)
    found = [killed(ground, target, at) for at in range(1, ground.usual(target).events + 1)]
    assert any("the result has another out/lines.txt" in faults for faults in found)


def test_other_planted_faults_are_found(ground, tmp_path, monkeypatch):
    place = ground.place
    place.folder.mkdir()
    outcome = ground.fork(lambda: tracing(place)).wait(20)
    assert any("planted" in fault for fault in faults_of(outcome))
    assert any(fault.startswith("exit code 1") for fault in faults_of(outcome))
    littering(place)
    assert left_over(place.folder) == ["left behind: out/.x.abcd1234"]

    def forgotten() -> int:
        if not os.fork():
            time.sleep(60)
        return 0

    monkeypatch.setattr("campaign.forks.LINGER", 0.3)
    assert "left processes behind" in faults_of(Fork(forgotten, tmp_path / "said").wait(20))
    late = Fork(lambda: time.sleep(60) or 0, tmp_path / "said").wait(0.3)
    assert faults_of(late) == ["did not end within 0 s"]


def test_what_a_forked_process_says_goes_to_a_file_that_was_removed(tmp_path):
    """As with subprocess, which hands over what is open; the log of a training was opened once more by its name."""
    with open(tmp_path / "log.txt", "w+") as log:
        (tmp_path / "log.txt").unlink()
        outcome = Fork(lambda: os.write(1, b"said\n") and 0, tmp_path / "none", said=log.fileno()).wait(20)
        log.seek(0)
        assert (outcome.code, outcome.out, log.read()) == (0, "", "said\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("error: the file is missing: check the path.\n", None),
        ("error: " + "x" * 300 + ".\n", "an error of 301 characters"),
        ("error: no end\n", "an error that is not a sentence"),
        ("\n", "exit code 2 without a sentence"),
        ("error: \x1b[31mred.\n", "printed the control character"),
    ],
)
def test_sentences_are_judged(said, fault):
    found = faults_of(Outcome(2, "", said, 0.1))
    assert [each.startswith(fault) for each in found] == [True] if fault else found == []


def test_folders_are_compared(tmp_path):
    (tmp_path / "a").write_text("1")
    before = content_of(tmp_path)
    (tmp_path / "b").write_text("2")
    (tmp_path / "a").write_text("3")
    assert differences(before, content_of(tmp_path)) == ["the result also holds b", "the result has another a"]
    assert differences(content_of(tmp_path), before)[0] == "the result lacks b"


def test_a_server_outlives_what_it_serves(tmp_path):
    def handle(item: str) -> list[str]:
        if item == "die":
            os._exit(3)
        if item == "hang":
            time.sleep(60)
        return [item]

    server = Server(handle, seconds=0.5, scratch=tmp_path, serves=2)
    assert [server("a"), server("b"), server("c")] == [["a"], ["b"], ["c"]]
    assert server("die")[0].startswith("the process ended with 3")
    assert server("hang") == ["took more than 0.5 s"]
    assert server("d") == ["d"]
    server.close()


@pytest.mark.parametrize(
    "kind", [captions.CAPTIONS, images.IMAGES, data_files.DATA_FILES, recipes.RECIPES], ids=lambda kind: kind.name
)
def test_a_few_strange_inputs(kind: Kind, ground, materials):
    place = ground.room.scratch
    room = Room(_given(place / "given", materials), place, seed=0)
    attack = kind.begin(room)
    assert [(number, attack(number)[1]) for number in range(3)] == [(number, []) for number in range(3)]


def _given(root: Path, materials) -> Given:
    from method_recipes import make_parts

    root.mkdir()
    return Given(root, materials, make_parts(root / "parts", materials))


def test_what_is_drawn_follows_from_the_seed():
    strategy = recipes._recipes()
    assert repr(drawn(strategy, 5, 20)) == repr(drawn(strategy, 5, 20)) != repr(drawn(strategy, 6, 20))


def test_columns_that_no_parquet_file_holds_are_written_as_text():
    name, data = data_files.WRITERS["parquet"]([{}, {"image_id": {}}, {"image": {"a": {}}, "width": 32}])
    assert name == "data.parquet"
    read = parquet.read_table(io.BytesIO(data)).to_pydict()
    assert read == {
        "image_id": [b"None", b"{}", b"None"],
        "image": [b"None", b"None", b"{'a': {}}"],
        "width": [None, None, 32],
    }


def test_the_table_names_the_first_failure():
    rows = [Row("kills", 1200, 9.0, [(7, "what", ["why"]), (9, "what", ["why"])]), Row("disks", 3)]
    assert table(rows, 5).splitlines()[2:] == [
        "| kills | 1,200 | 2 | `python -m tests.campaign --only kills --seed 5 --try 7` |",
        "| disks | 3 | 0 |  |",
        "| all | 1,203 | 2 | |",
    ]
    assert reproduce("x", 1, 2) == "python -m tests.campaign --only x --seed 1 --try 2"
