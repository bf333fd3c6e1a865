"""CPU time of the Penn Treebank tokens of 25,014 captions, against the Java tokenizer as pycocoevalcap calls it.

pycocoevalcap starts Java twice, for the references and for the captions under test; its time is that of the processes it
starts and its own. Ours is measured warm, and cold: in a new process, with the import and everything that is built at
first use. The ways take turns; medians of five, on one thread. Where the file holds fewer captions they are repeated.

    OMP_NUM_THREADS=1 python benchmarks/tokenizer.py COCO_CAPTIONS_JSON [--captions 25014] [--repeats 5] [--docs PAGE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
from tables import spread, write_table

from tellapart.metrics.ptb import ptb_tokenize

COLD = """
import json, sys, time
captions = json.load(open(sys.argv[1]))
start = time.process_time()
from tellapart.metrics.ptb import ptb_tokenize
ptb_tokenize(captions)
print(time.process_time() - start)
"""
UNDER_TEST = 0.2
"""Share of the captions that are under test; the others are their references."""


def total() -> float:
    """CPU seconds so far of this process and of those it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cpu_seconds(run: Callable[[], list[str]]) -> tuple[float, list[str]]:
    """CPU time of a call and of the processes it waited for, and what it returned."""
    before = total()
    tokens = run()
    return total() - before, tokens


def java(captions: list[str]) -> list[str]:
    """Two calls of pycocoevalcap's tokenizer."""
    cut = int(len(captions) * UNDER_TEST)
    found: list[str] = []
    for part in (captions[:cut], captions[cut:]):
        rows = {number: [{"caption": caption}] for number, caption in enumerate(part)}
        tokens = PTBTokenizer().tokenize(rows)
        found += [tokens[number][0] for number in rows]
    return found


def cold(captions: Path) -> float:
    """CPU time in a new process, from before the import."""
    command = [sys.executable, "-c", COLD, str(captions)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def table(captions: int, times: dict[str, list[float]]) -> list[str]:
    """Rows of ours, warm and in a new process."""
    lines = ["| captions | ours | Java, CPU s | ours, CPU s | ratio |", "|---|---|---|---|---|"]
    for way, name in (("warm", "warm"), ("cold", "in a new process")):
        ratio = spread([theirs / ours for theirs, ours in zip(times["java"], times[way], strict=True)], 1)
        medians = (f"{statistics.median(times[which]):.2f}" for which in ("java", way))
        lines.append(f"| {captions:,} | {name} | {' | '.join(medians)} | {ratio} |")
    return lines


def main() -> None:
    """Print medians over interleaved rounds, the ratios and how many captions agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--captions", type=int, default=25_014)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--docs", type=Path)
    arguments = parser.parse_args()
    rows = json.loads(arguments.file.read_text())["annotations"]
    captions = list(itertools.islice(itertools.cycle(row["caption"] for row in rows), arguments.captions))
    times: dict[str, list[float]] = {"java": [], "cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "captions.json"
        stored.write_text(json.dumps(captions))
        ours = ptb_tokenize(captions)
        for _ in range(arguments.repeats):
            spent, theirs = cpu_seconds(lambda: java(captions))
            times["java"].append(spent)
            times["cold"].append(cold(stored))
            times["warm"].append(cpu_seconds(lambda: ptb_tokenize(captions))[0])
    medians = {way: statistics.median(values) for way, values in times.items()}
    equal = sum(their == our for their, our in zip(theirs, ours, strict=True))
    print(f"{len(captions)} captions, {equal} equal, CPU seconds [min-max]:")
    for way, values in times.items():
        ratio = medians["java"] / medians[way]
        print(f"  {way:5} {medians[way]:.3f} [{min(values):.3f}-{max(values):.3f}]  {ratio:5.1f}x")
    if arguments.docs is not None:
        write_table(arguments.docs, "tokenizer", table(len(captions), times))


if __name__ == "__main__":
    main()
