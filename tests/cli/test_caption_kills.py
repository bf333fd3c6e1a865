"""140 photos, killed again and again: in the end every photo has the caption it would have had, drawn once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tellapart.captioning.journal import read_journal
from tellapart.cli.main import main

PROGRAM = [sys.executable, "-m", "tellapart.cli", "caption"]


@pytest.fixture
def words(shared_data, materials, tmp_path) -> list[str]:
    """All photos, and a file that is none, so that the journals stay to be looked at."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "broken.jpg").write_bytes(b"no picture")
    (tmp_path / "photos").mkdir()
    for folder, count in (("coco-mini/train2017", 50), ("coco-mini/val2017", 40), ("unlabelled", 50)):
        for path in sorted((shared_data / folder).glob("*.jpg"))[:count]:
            (tmp_path / "photos" / path.name).symlink_to(path)
    options = ["--captioner", materials.captioner, "--do_sample", "--resample", "1", "--max_new_tokens", "16"]
    return [str(word) for word in (tmp_path / "photos", tmp_path / "broken", *options, "--batch_size", "4")]


def journalled(work: Path) -> list[str]:
    """Ids in the journals as they are, a torn line left out."""
    rows = [line for path in work.glob("journal-*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return [row["id"] for row in map(json.loads, rows) if "error" not in row]


def stopped(command: list[str], work: Path, more: int, wait: float, number: int) -> int:
    """Start the command, and stop it some time after ``more`` further captions; gives its exit code."""
    before = len(journalled(work))
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 120
    while process.poll() is None and len(journalled(work)) < before + more:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(wait)
    process.send_signal(number)
    said = process.communicate()[1]
    assert "Traceback" not in said
    if number == signal.SIGINT:
        assert said.splitlines()[-1].endswith("images captioned: run the same command again to resume.")
    return process.returncode


@pytest.mark.slow
@pytest.mark.nightly
def test_three_kills_change_nothing(words, tmp_path, capsys):
    assert main(["caption", *words, "--output", str(tmp_path / "whole.jsonl")]) == 0
    whole = {row["id"]: row["caption"] for row in map(json.loads, (tmp_path / "whole.jsonl").read_text().splitlines())}
    assert len(whole) == 140

    command = [*PROGRAM, *words, "--out", "sidecars", "--output", str(tmp_path / "texts"), "--existing", "append"]
    work, chance = tmp_path / "texts" / "captions.work", random.Random(0)
    counts = []
    for _ in range(3):
        code = stopped(command, work, chance.randint(5, 15), chance.random() * 0.2, signal.SIGKILL)
        assert code == -signal.SIGKILL
        counts.append(len(journalled(work)))
        assert max(Counter(journalled(work)).values()) == 1
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] < 140
    capsys.readouterr()
    assert main(command[3:]) == 0
    said = capsys.readouterr().err.splitlines()
    # a batch may have been journalled between the last look at the journal and the kill
    before = int(said[-1].split("(")[1].split(" before")[0])
    assert before == counts[-1]
    assert said[-1].startswith(f"captioned {140 - before} images ({before} before)")

    drawn = [caption for path in work.glob("journal-*") for caption in read_journal(path)[0] if caption.error is None]
    assert Counter(caption.id for caption in drawn) == Counter(whole.keys()), "each photo once"
    assert {caption.id: caption.caption for caption in drawn} == whole
    texts = {path.stem: path.read_text() for path in (tmp_path / "texts").glob("*.txt")}
    assert texts == {Path(name).stem: f"{text}\n" for name, text in whole.items()}, "and nothing was appended twice"
    assert not [path for path in (tmp_path / "texts").iterdir() if path.name.startswith(".")], "no half-written file"


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_interrupt_says_how_to_go_on(words, processes, tmp_path, capsys):
    output = tmp_path / "x.jsonl"
    command = [*PROGRAM, *words, "--output", str(output), "--num_processes", processes]
    assert stopped(command, tmp_path / "x.jsonl.work", 8, 0.1, signal.SIGINT) == 130
    assert not output.exists()
    assert main(["caption", *words, "--output", str(output)]) == 0
    assert " before)" in capsys.readouterr().err
    ids = [json.loads(line)["id"] for line in output.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 140
