"""``tellapart compare``: measured runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tellapart.cli.command import options_of
from tellapart.cli.console import result_console, say
from tellapart.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of ``tellapart compare``.

    Args:
        protocol: which evaluation to take where a run has several: the name of its folder under ``eval``.
        format: how to print the table.
        all_metrics: show every metric instead of the main ones.
        confidence: share of the bootstrap's draws inside an interval.
        samples: draws of the bootstrap.
        seed: seed of these draws.
    """

    protocol: str | None = None
    format: Literal["table", "markdown", "json"] = "table"
    all_metrics: bool = False
    confidence: float = 0.95
    samples: int = 2000
    seed: int = 0


def run(argv: Sequence[str]) -> int:
    """Print the table; the first run is what the others are compared to."""
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
    from tellapart.evaluation.compare import compare

    comparison = compare(
        [Path(word) for word in words],
        protocol=options.protocol,
        samples=options.samples,
        seed=options.seed,
        confidence=options.confidence,
    )
    printers = {
        "table": lambda: comparison.print(result_console(), every_metric=options.all_metrics),
        "markdown": lambda: say(comparison.to_markdown(every_metric=options.all_metrics).rstrip()),
        "json": lambda: say(json.dumps(comparison.to_json(), indent=2)),
    }
    printers[options.format]()
    return 0
