"""``tellapart bench``: every method in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tellapart.cli.command import options_of
from tellapart.cli.console import say
from tellapart.errors import UsageError

BENCHES = ("world",)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of ``tellapart bench``.

    Args:
        methods: rows or methods with commas between them, or all; the start captioner is always a row.
        seeds: how many trainings a row has; seeds 0, 1 and so on.
        output_dir: folder of the trainings; what a study left there is used again, an interrupted bench continues there.
        docs: folder that the page and its picture are written to; by default output_dir.
        size: size of the built-in world; the numbers of the small one mean little.
        steps: of every training but those that their study gave a budget of its own, which the table names.
        workers: trainings at a time, one thread each.
        dry_run: list the trainings and which are done, and train nothing.
    """

    methods: str = "all"
    seeds: int = 3
    output_dir: Path = Path("runs/study")
    docs: Path | None = None
    size: Literal["full", "small"] = "full"
    steps: int = 60
    workers: int = 2
    dry_run: bool = False


def run(argv: Sequence[str]) -> int:
    """Train what is missing, measure it, and write the table."""
    chosen = options_of(
        argv,
        BenchOptions,
        usage="bench world",
        description="Lay every training method side by side on the built-in world, at the points that its studies chose.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if words != ["world"]:
        raise UsageError(f"tellapart bench takes one word, what to measure on: {', '.join(BENCHES)}.")
    for name in ("seeds", "steps", "workers"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}: it must be at least 1.")
    return _bench(options)


def _bench(options: BenchOptions) -> int:
    from tellapart.experiments.bench.bench import Bench
    from tellapart.experiments.bench.entries import entries_of
    from tellapart.experiments.bench.page import write
    from tellapart.experiments.world_run import TRAINED, Setting
    from tellapart.sweep.frontier.picture import require_matplotlib

    base = Setting(row="xe", steps=options.steps, size=options.size)
    names = [name.strip() for name in options.methods.split(",") if name.strip()]
    bench = Bench(entries_of(names), options.output_dir, base, tuple(range(options.seeds)))
    missing = bench.missing()
    total = len(bench.entries) * len(bench.seeds)
    if options.dry_run:
        left = [
            f"{job.name}: {'measure' if (job.folder / TRAINED).exists() else 'train and measure'}" for job in missing
        ]
        say("\n".join([f"{total - len(missing)} of {total} are done; left are:", *left]))
        return 0
    require_matplotlib()
    try:
        bench.run(workers=options.workers)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("stopped; the same command goes on where it was") from error
    say(f"page: {write(bench, options.docs or options.output_dir)}")
    return 0
