"""What captioning a collection costs beyond the captioner: the whole loop against reading and generating in batches.

    OMP_NUM_THREADS=1 python benchmarks/captioning.py CAPTIONER PHOTOS [--batch_size 16] [--docs benchmarks/README.md]

Both draw greedily with the same batch size. The peer is what one would write by hand: open, process, generate, batch after
batch, in order. Ratios above 1 mean that the loop is faster (it reads ahead in threads); ``in memory`` leaves reading out.
The last lines, and the table that ``--docs`` writes, say where the loop's CPU time goes, without threads: without further tries
for captions with a fault, and with as many as the command has.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tables import write_table

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioning.collection import Pace, caption_items
from tellapart.captioning.defaults import REDRAW, REDRAW_ON
from tellapart.captioning.draw import Drawer, Drawing
from tellapart.captioning.outputs.files import JsonLines
from tellapart.captioning.plan import plan
from tellapart.captioning.read import Read, Reader
from tellapart.captioning.records import Item
from tellapart.captioning.serve import Station
from tellapart.captioning.work import Work, run_of
from tellapart.recipe.models import model_folder
from tellapart.types import Batch, Decoding

REPEATS = 5
GREEDY, SAMPLING = Decoding(), Decoding(do_sample=True)


def main() -> None:
    """Print images a second and their ratios, and the parts of the loop's CPU time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captioner")
    parser.add_argument("photos")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--docs", type=Path)
    arguments = parser.parse_args()
    captioner = HuggingFaceCaptioner.from_pretrained(model_folder(arguments.captioner, size="full")).eval()
    items, size = plan([arguments.photos]), arguments.batch_size
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
    lines = []
    for tries in (0, REDRAW):
        parts = parts_of(captioner, items, size, read, tries)
        for name, milliseconds in parts.items():
            print(f"{name:28} {milliseconds:8.2f} CPU ms per image, up to {tries} further tries")
        lines = lines or [f"| further tries | {' | '.join(parts)} |", "|---" * (len(parts) + 1) + "|"]
        lines.append(f"| {tries} | {' | '.join(f'{milliseconds:.2f}' for milliseconds in parts.values())} |")
    if arguments.docs is not None:
        write_table(arguments.docs, "captioning", lines)


def parts_of(
    captioner: HuggingFaceCaptioner, items: list[Item], size: int, read: Reader, tries: int
) -> dict[str, float]:
    """Part of the loop -> CPU milliseconds per image, medians."""
    rounds: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        spent = dict.fromkeys(("opening and preparing", "drawing"), 0.0)

        def timed(name: str, call: Callable[..., Any], spent: dict[str, float] = spent) -> Callable[..., Any]:
            def run(*given: Any, **options: Any) -> Any:
                start = time.process_time()
                result = call(*given, **options)
                spent[name] += time.process_time() - start
                return result

            return run

        start = time.process_time()
        drawing = timed("drawing", captioner.generate)
        generate, captioner.generate = captioner.generate, drawing  # type: ignore[method-assign]
        try:
            loop(captioner, items, size, timed("opening and preparing", read), threads=0, tries=tries)
        finally:
            captioner.generate = generate  # type: ignore[method-assign]
        whole = time.process_time() - start
        for name, seconds in {**spent, "the rest": whole - sum(spent.values())}.items():
            rounds.setdefault(name, []).append(1000 * seconds / len(items))
    return {name: statistics.median(found) for name, found in rounds.items()}


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
    tries: int = 0,
) -> None:
    """All of ``tellapart caption``: batches by size, gate, further tries, journal, and the file at the end."""
    with tempfile.TemporaryDirectory() as folder:
        output = JsonLines(Path(folder) / "x.jsonl")
        work = Work(output.work, {})
        station = Station(read, Drawer(captioner, Drawing(GREEDY, SAMPLING, resample=tries, resample_on=REDRAW_ON)))
        pace = Pace(batch_size=size, threads=threads, by_size=by_size)
        caption_items(items, lambda rank, processes: station, pace, report=lambda one: None, output=output, work=work)
        drawn = work.drawn()
        output.assemble([(item, drawn[item.id]) for item in items if item.id in drawn])
        work.remove(run_of({}, [item.id for item in items]))


if __name__ == "__main__":
    main()
