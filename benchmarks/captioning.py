"""What captioning a collection costs beyond the captioner: the whole loop against reading and generating in batches.

    python benchmarks/captioning.py CAPTIONER PHOTOS [BATCH_SIZE]

Both draw greedily with the same batch size. The peer is what one would write by hand: open, process, generate, batch after
batch, in order. Ratios above 1 mean that the loop is faster (it reads ahead in threads); ``in memory`` leaves reading out.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioning.collection import Pace, caption_items
from tellapart.captioning.draw import Drawer, Drawing
from tellapart.captioning.outputs.files import JsonLines
from tellapart.captioning.plan import plan
from tellapart.captioning.read import Read, Reader
from tellapart.captioning.records import Item
from tellapart.captioning.serve import Station
from tellapart.captioning.work import Work
from tellapart.types import Batch, Decoding

REPEATS = 5
GREEDY, SAMPLING = Decoding(), Decoding(do_sample=True)


def main() -> None:
    """Print images a second and their ratios."""
    captioner = HuggingFaceCaptioner.from_pretrained(sys.argv[1]).eval()
    items, size = plan([sys.argv[2]]), int(sys.argv[3]) if len(sys.argv) > 3 else 16
    read = Reader({captioner.name: captioner.process})
    known = [read(items[first : first + size]) for first in range(0, len(items), size)]
    of_first = {one.items[0].id: one for one in known}
    ways = {
        "by hand": lambda: by_hand(captioner, items, size),
        "the loop, no threads": lambda: loop(captioner, items, size, read, threads=0),
        "the loop, 2 threads": lambda: loop(captioner, items, size, read, threads=2),
        "generate alone, in memory": lambda: [captioner.generate(one.batch, GREEDY) for one in known if one.batch],
        "the loop, in memory": lambda: loop(
            captioner, items, size, lambda some: of_first[some[0].id], threads=0, by_size=False
        ),
    }
    rates = {name: [] for name in ways}
    for _ in range(REPEATS):  # in turn, so that whatever else the machine does meets all of them
        for name, way in ways.items():
            rates[name].append(len(items) / seconds(way))
    peers = ["by hand", "by hand", "by hand", "generate alone, in memory", "generate alone, in memory"]
    for (name, found), peer in zip(rates.items(), peers, strict=True):
        ratio = statistics.median(a / b for a, b in zip(found, rates[peer], strict=True))
        print(f"{name:28} {statistics.median(found):8.1f} images/s  {ratio:5.2f} x {peer}")


def seconds(way: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def by_hand(captioner: HuggingFaceCaptioner, items: list[Item], size: int) -> list[str]:
    """Open, process, generate."""
    texts: list[str] = []
    for first in range(0, len(items), size):
        some = items[first : first + size]
        inputs = {captioner.name: captioner.process([item.image.open() for item in some])}
        with torch.no_grad():
            texts += captioner.generate(Batch([item.id for item in some], [[] for _ in some], inputs), GREEDY).texts
    return texts


def loop(
    captioner: HuggingFaceCaptioner,
    items: list[Item],
    size: int,
    read: Callable[[list[Item]], Read],
    *,
    threads: int,
    by_size: bool = True,
) -> None:
    """All of ``tellapart caption --resample 0``: batches by size, gate, journal, and the file at the end."""
    with tempfile.TemporaryDirectory() as folder:
        output = JsonLines(Path(folder) / "x.jsonl")
        work = Work(output.work, {})
        station = Station(read, Drawer(captioner, Drawing(GREEDY, SAMPLING)))
        pace = Pace(batch_size=size, threads=threads, by_size=by_size)
        caption_items(items, lambda rank, processes: station, pace, report=lambda one: None, output=output, work=work)
        drawn = work.drawn()
        output.assemble([(item, drawn[item.id]) for item in items if item.id in drawn])
        work.remove()


if __name__ == "__main__":
    main()
