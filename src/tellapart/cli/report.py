"""``tellapart report``: one HTML page about measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tellapart.cli.command import options_of
from tellapart.cli.console import note, say
from tellapart.cli.measured import DataOptions, load
from tellapart.cli.runs import made
from tellapart.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ReportOptions(DataOptions):
    """Options of ``tellapart report``; what is null comes from the first run's own recipe.

    Args:
        output: the HTML file to write.
        protocol: which evaluation to take where a run has several: the name of its folder under ``eval``.
        title: heading of the page.
        num_images: example images to show; 0 shows none and needs no data.
        seed: of the examples drawn at random, and of the bootstrap.
    """

    output: Path = Path("report.html")
    protocol: str | None = None
    title: str = "Image captioners compared"
    num_images: int = 24
    seed: int = 0


def run(argv: Sequence[str]) -> int:
    """Write the page and print its path."""
    chosen = options_of(
        argv,
        ReportOptions,
        usage="report RUN ...",
        description="Write one self-contained HTML page about measured runs: table, examples, curves.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if not words:
        raise UsageError("no runs were named: give the folders of one or more measured runs.")
    for name in ("num_images", "seed"):
        if getattr(options, name) < 0:
            raise UsageError(f"--{name} is {getattr(options, name)}: give 0 or more.")
    from tellapart.evaluation.report import read_run, write_report

    views = [read_run(Path(word), protocol=options.protocol) for word in words]
    run = made(Path(words[0]))
    named = options.data is not None or run is not None
    if options.num_images and not named:
        note("note: the page shows no images, because no run says which they are: give --data to see them.")
    path = write_report(
        options.output,
        views,
        dataset=load(options, run).dataset if options.num_images and named else None,
        title=options.title,
        images=options.num_images,
        seed=options.seed,
    )
    say(str(path))
    return 0
