"""CPU seconds and memory of whole commands, with all the processes that they start (Linux).

    OMP_NUM_THREADS=1 python benchmarks/commands.py --captioner FOLDER --photos FOLDER [--rounds 3] [--docs benchmarks/README.md]

``train RECIPE --help``; ``caption`` on two photos, by one process and by two, which is all start-up; and ``score`` on
made-up captions, 25,000 with four references each and 1,000,000 with one. A process that outlives its parent is counted, too.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

from tables import write_table

SUBREAPER = 36  # of prctl: orphans become children of this process
IMAGES = {25_000: 4, 1_000_000: 1}
"""Captions to score -> references of each."""


def measured(words: list[str]) -> tuple[float, int]:
    """CPU seconds of a command, and the largest resident set in MB of any of its processes."""
    tellapart = [sys.executable, "-m", "tellapart.cli"]
    done = subprocess.Popen([*tellapart, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds, memory = 0.0, 0
    while True:
        try:
            child, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return seconds, memory
        if child == done.pid and status:
            raise SystemExit(f"tellapart {words[0]} ended with {os.waitstatus_to_exitcode(status)}")
        seconds += usage.ru_utime + usage.ru_stime
        memory = max(memory, usage.ru_maxrss // 1024)


def made_up(folder: Path, images: int, references: int) -> list[str]:
    """The command that scores captions of so many images with so many references each.

    Another process makes them up: Linux counts the memory of this one to the peak of every process that it starts.
    """
    writing = get_context("fork").Process(target=write, args=(folder, images, references))
    writing.start()
    writing.join()
    if writing.exitcode:
        raise SystemExit("the captions could not be written")
    return ["score", str(folder / "captions.json"), "--references", str(folder / "references.json"), "--bootstrap", "0"]


def write(folder: Path, images: int, references: int) -> None:
    """``captions.json`` and ``references.json``."""
    rng = random.Random(0)
    words, weights = [f"w{i}" for i in range(10_000)], [*accumulate(1 / (i + 1) for i in range(10_000))]
    each = 1 + references
    texts = [" ".join(rng.choices(words, cum_weights=weights, k=rng.randint(8, 14))) for _ in range(each * images)]
    captions = [{"image_id": i, "caption": texts[each * i]} for i in range(images)]
    rows = [{"image_id": n // each, "id": n, "caption": text} for n, text in enumerate(texts) if n % each]
    listed = [{"id": i, "file_name": f"{i}.jpg"} for i in range(images)]
    (folder / "captions.json").write_text(json.dumps(captions))
    (folder / "references.json").write_text(json.dumps({"images": listed, "annotations": rows}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captioner", required=True)
    parser.add_argument("--photos", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    lines = ["| command | CPU s | peak MB |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        caption = ["caption", options.photos, "--captioner", options.captioner, "--limit", "2", "--overwrite"]
        caption += ["--output", str(folder / "captions.jsonl"), "--num_processes"]
        commands: dict[str, Callable[[], list[str]]] = {
            "`train world_ved_dico --help`": lambda: ["train", "world_ved_dico", "--help"],
            "`train world_blip2_vlrm --help`": lambda: ["train", "world_blip2_vlrm", "--help"],
            "`caption`, one process": lambda: [*caption, "1"],
            "`caption`, two processes": lambda: [*caption, "2"],
            **{
                f"`score`, {n:,} captions, references of each: {r}": lambda n=n, r=r: made_up(folder, n, r)
                for n, r in IMAGES.items()
            },
        }
        for title, command in commands.items():
            words = command()
            found = [measured(words) for _ in range(options.rounds)]
            seconds = statistics.median(seconds for seconds, _ in found)
            lines.append(f"| {title} | {seconds:.1f} | {max(memory for _, memory in found)} |")
            print(lines[-1], flush=True)
    if options.docs:
        write_table(options.docs, "commands", lines)


if __name__ == "__main__":
    main()
