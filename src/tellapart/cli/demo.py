"""``tellapart demo``: the whole story on the built-in world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from tellapart.cli.command import options_of
from tellapart.cli.console import result_console, say
from tellapart.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of ``tellapart demo``.

    Args:
        output_dir: folder for its runs and the report; an interrupted demo continues there.
        size: size of the built-in world; small takes two minutes of CPU time, and its numbers mean little.
        workers: trainings at a time, one thread each.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart demo",
        "tellapart demo --size small --output_dir runs/small",
    )
    output_dir: Path = Path("runs/demo")
    size: Literal["full", "small"] = "full"
    workers: int = 2


def run(argv: Sequence[str]) -> int:
    """Train, compare and report on the world."""
    chosen = options_of(
        argv,
        DemoOptions,
        usage="demo",
        description="Build the world, train several methods on it, and write a report that compares them.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if words:
        raise UsageError(f"{words[0]!r} is not expected: tellapart demo takes options only.")
    if options.workers < 1:
        raise UsageError(f"--workers is {options.workers}: it must be at least 1.")
    from tellapart.sweep.demo import run_demo

    try:
        said, comparison, page = run_demo(options.output_dir, size=options.size, workers=options.workers)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("stopped; the same command resumes there") from error
    say(said)
    comparison.print(result_console())
    say(f"report: {page}")
    return 0
