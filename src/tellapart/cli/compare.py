"""``tellapart compare``: measured runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tellapart.cli.command import options_of, refuse_unused
from tellapart.cli.console import note, result_console, say, say_json
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.evaluation.compare import Comparison
    from tellapart.evaluation.pool import Pooled


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of ``tellapart compare``.

    Args:
        protocol: which evaluation to take where a run has several: the name of its folder under ``eval``, or words of it, such as
            test.
        start: show the model that the runs began from first, if they kept its evaluation.
        pool: seeds turns runs that differ only in the seed into one row: mean and standard deviation, named by the method.
        format: how to print the table: on the screen (table), as Markdown (md), as LaTeX with booktabs (latex), or as data (csv,
            json) on the scale of metrics.json.
        all_metrics: show every metric instead of the main ones.
        confidence: share of the bootstrap's draws inside an interval.
        samples: draws of the bootstrap.
        seed: seed of these draws.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart compare runs/x runs/y",
        "tellapart compare runs/x runs/y --protocol test",
        "tellapart compare runs/dico-0 runs/dico-1 runs/scst-0 runs/scst-1 --pool seeds --format latex",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "what is compared": ("protocol", "start", "pool"),
        "output": ("format", "all_metrics"),
        "intervals": ("confidence", "samples", "seed"),
    }
    protocol: str | None = None
    start: bool = True
    pool: Literal["seeds"] | None = None
    format: Literal["table", "md", "latex", "csv", "json"] = "table"
    all_metrics: bool = False
    confidence: float = 0.95
    samples: int = 2000
    seed: int = 0


def run(argv: Sequence[str]) -> int:
    """Print the table; the others are compared to the first row."""
    chosen = options_of(
        argv,
        CompareOptions,
        usage="compare RUN ...",
        description="Lay runs side by side that were measured on the same images (train and score measure).",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if not words:
        raise UsageError("no runs were named: give the folders of two or more measured runs.")
    if not 0 < options.confidence < 1 or options.samples < 1:
        raise UsageError("--confidence must lie between 0 and 1, and --samples be at least 1: change them.")
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}: give 0 or more.")
    if options.pool is not None:
        _refuse_intervals(options, "with --pool, which shows spreads over seeds and no intervals: leave it out")
    found, every = _compared(words, options), options.all_metrics
    printers = {
        "table": lambda: found.print(result_console(), every_metric=every),
        "md": lambda: say(found.sheet(every_metric=every).to_markdown().rstrip()),
        "latex": lambda: say(found.sheet(every_metric=every).to_latex().rstrip()),
        "csv": lambda: say(found.sheet(every_metric=every).to_csv().rstrip()),
        "json": lambda: say_json(found.to_json(), indent=2),
    }
    printers[options.format]()
    return 0


def _refuse_intervals(options: CompareOptions, why: str) -> None:
    """Raise where an option of intervals was given, but there are none."""
    used = [field.name for field in fields(options) if field.name not in CompareOptions.groups["intervals"]]
    refuse_unused(options, used, why)


def _compared(words: Sequence[str], options: CompareOptions) -> Comparison | Pooled:
    """The runs side by side, or the pools of those that differ only in the seed."""
    from tellapart.evaluation.compare import compare_results
    from tellapart.evaluation.report.runs import read_run, told_apart, with_start

    views = told_apart([read_run(Path(word), protocol=options.protocol) for word in words], words)
    for view in views:
        if view.selected_step == 0:
            note(f"note: {view.name} selected step 0, so what is shown of it is its start.")
    if options.pool is not None:
        from tellapart.recipe.pooling import pool_seeds

        return pool_seeds(views, start=options.start)
    views = with_start(views) if options.start else views
    if len(views) == 1:
        _refuse_intervals(options, f"where {words[0]} is compared with no other run: name two, or leave it out")
    return compare_results(
        [view.result for view in views], samples=options.samples, seed=options.seed, confidence=options.confidence
    )
