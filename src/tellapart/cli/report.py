"""``tellapart report``: one HTML page about measured runs, and a run's model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from tellapart.cli.command import options_of, refuse_unused, require_html
from tellapart.cli.console import note, say
from tellapart.errors import UsageError
from tellapart.recipe.measured import DataOptions, load, of_result
from tellapart.recipe.runs import made


@dataclass(frozen=True, kw_only=True)
class ReportOptions(DataOptions):
    """Options of ``tellapart report``; what is null comes from the first run's own recipe.

    Args:
        output: the HTML file to write.
        protocol: which evaluation to take where a run has several: the name of its folder under ``eval``.
        title: heading of the page.
        num_images: images in the gallery; 0 leaves it out and needs no data.
        start: show the start model in the first row, if the runs kept its evaluation.
        seed: seed of the randomly drawn images and of the bootstrap.
        card: write the model card of each run (README.md in its folder) instead of the page.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart report runs/x runs/y --output report.html",
        "tellapart report --card runs/x",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "output": ("output", "title", "num_images", "card"),
        "runs": ("protocol", "start", "seed"),
        "images": tuple(field.name for field in fields(DataOptions)),
    }
    output: Path = Path("report.html")
    protocol: str | None = None
    title: str = "Image captioners compared"
    num_images: int = 80
    start: bool = True
    seed: int = 0
    card: bool = False


def run(argv: Sequence[str]) -> int:
    """Write the page and print its path."""
    chosen = options_of(
        argv,
        ReportOptions,
        usage="report RUN ... | report --card RUN ...",
        description="Write one self-contained HTML page about measured runs, or their model cards.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if not words:
        raise UsageError("no runs were named: give the folders of one or more measured runs.")
    for name in ("num_images", "seed"):
        if getattr(options, name) < 0:
            raise UsageError(f"--{name} is {getattr(options, name)}: give 0 or more.")
    return _cards(words, options) if options.card else _page(words, options)


def _cards(words: Sequence[str], options: ReportOptions) -> int:
    """Write each run's model card."""
    from tellapart.cli.push import references_of, write_or_keep_card
    from tellapart.evaluation.results import find_result

    used = {"card", "protocol", "seed", *(field.name for field in fields(DataOptions))}
    refuse_unused(options, used, "with --card, which writes README.md into each run: leave it out")
    for word in words:
        run = Path(word)
        chosen = of_result(options, find_result(run, options.protocol))
        references = references_of(run, chosen, required=options != replace(options, **asdict(DataOptions())))
        path = write_or_keep_card(run, protocol=options.protocol, references=references, seed=options.seed)
        say(str(path))
    return 0


def _page(words: Sequence[str], options: ReportOptions) -> int:
    """Write the page about all runs."""
    from tellapart.evaluation.report import read_run, with_start, write_report
    from tellapart.evaluation.report.runs import told_apart

    require_html(options.output)
    if not options.num_images:
        used = {field.name for field in fields(options)} - {field.name for field in fields(DataOptions)}
        refuse_unused(options, used, "with --num_images 0, which shows no pictures: leave it out")
    views = told_apart([read_run(Path(word), protocol=options.protocol) for word in words], words)
    run = made(Path(words[0]))
    named = options.data is not None or run is not None
    if options.num_images and not named:
        note("note: the page shows no pictures, because no run says which they are: give --data to see them.")
    path = write_report(
        options.output,
        with_start(views) if options.start else views,
        dataset=load(of_result(options, views[0].result), run).dataset if options.num_images and named else None,
        title=options.title,
        images=options.num_images,
        seed=options.seed,
    )
    say(str(path))
    return 0
