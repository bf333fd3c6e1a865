"""A study on the world, by one protocol: ``python -m tellapart.experiments.study --study world --docs docs/results``.

Every method gets the same grid of learning rates (and its knob's values) with seed 0 on val; the best point by the
selection rule is trained with seeds 0, 1 and 2 and measured on test at the selected and the last step. Where a study does
otherwise, its page says so. Finished trainings are kept by a hash of their settings, so an interrupted study continues and a
changed one reuses what still holds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError
from tellapart.experiments.jobs import Job, require, run_jobs
from tellapart.experiments.study_plan import Plan
from tellapart.experiments.world_rows import LEARNING_RATES, STARTS
from tellapart.experiments.world_run import ROWS, TRAINED, Setting, marker_of

PLANS = {
    "world": "tellapart.experiments.study_world",
    "wtf-rl": "tellapart.experiments.study_wtf",
    "sle": "tellapart.experiments.study_sle",
    "psst": "tellapart.experiments.study_psst",
    "dico": "tellapart.experiments.study_dico",
    "vlrm": "tellapart.experiments.study_vlrm",
    "negclip": "tellapart.experiments.study_negclip",
}
"""Study -> the module with its ``PLAN``, ``make``, if it is no plain grid, and ``STEPS``, if its trainings take others."""


@dataclass(frozen=True)
class Study:
    """Where a study lives and what it spans.

    Args:
        plan: what is compared.
        root: folder of all its trainings.
        base: steps, images and size that all trainings share.
        seeds: seeds of the measured points; the first also chooses, where a study has no other rule.
        learning_rates: the grid.
    """

    plan: Plan
    root: Path
    base: Setting
    seeds: tuple[int, ...] = (0, 1, 2)
    learning_rates: tuple[float, ...] = LEARNING_RATES

    def grid(self, row: str) -> list[Setting]:
        """Every point that a method is tried at on val."""
        return [
            replace(self.base, row=row, learning_rate=rate, knob=value, seed=self.seeds[0])
            for value in ROWS[row].values
            for rate in ROWS[row].learning_rates or self.learning_rates
        ]

    def trained(self, setting: Setting) -> dict[str, Any]:
        """What a training noted on val."""
        return json.loads((self.root / setting.key() / TRAINED).read_text(encoding="utf-8"))

    def tested(self, setting: Setting) -> dict[str, Any]:
        """What a training measured on test: point -> decoding -> metric -> value."""
        return json.loads(
            (self.root / setting.key() / marker_of(self.plan.further_measures)).read_text(encoding="utf-8")
        )["test"]

    def chosen(self, row: str) -> Setting:
        """The grid point whose selected checkpoint retrieves best on val (the lower rate on a tie)."""
        if row in STARTS:
            return replace(self.base, row=row, steps=0)
        return max(self.grid(row), key=lambda setting: self.trained(setting)["val"][ROWS[row].metric])

    def seeded(self, setting: Setting) -> list[Setting]:
        """The setting with every seed."""
        return [replace(setting, seed=seed) for seed in self.seeds]

    def protocol(self) -> str:
        """How a point was chosen, for the head of the page."""
        rates = ", ".join(f"{rate:g}" for rate in self.learning_rates)
        seeds = ", ".join(map(str, self.seeds))
        return f"""learning rates {rates}
and the values of a method's knob are tried with seed {self.seeds[0]} and chosen on **val**; then seeds {seeds} at the chosen
point, mean ± standard deviation."""

    def measured(self) -> Iterator[tuple[str, list[Setting]]]:
        """Name of a table row -> its settings, one a seed."""
        for row in (*self.plan.starts, *self.plan.rows):
            yield row, self.seeded(self.chosen(row))
        for name, setting in self.plan.further(self).items():
            yield name, self.seeded(setting)

    def jobs(self, settings: Sequence[Setting], *, test: bool) -> list[Job]:
        """One process a distinct setting."""
        unique = {setting.key(): setting for setting in settings}
        return [setting.job(self.root, test=test, further=self.plan.further_measures) for setting in unique.values()]

    def run(self, *, workers: int) -> None:
        """Train the grid, choose, then train and measure every seed.

        Raises:
            UsageError: a training failed; the others are kept.
        """
        grid = [setting for row in (*self.plan.rows, *self.plan.on_val) for setting in self.grid(row)]
        require(run_jobs(self.jobs(grid, test=False), "grid on val", workers=workers))
        points = [setting for _, settings in self.measured() for setting in settings]
        require(run_jobs(self.jobs(points, test=True), "seeds on test", workers=workers))


def main(argv: list[str] | None = None) -> None:
    """Run a study and write its page; what a user can mend ends it with one line."""
    try:
        _make_page(_parse(argv))
    except UsageError as error:
        sys.exit(f"error: {error}")


def _make_page(options: argparse.Namespace) -> None:
    from tellapart.experiments.demo import reference_rows
    from tellapart.experiments.study_page import write_page
    from tellapart.experiments.world import World
    from tellapart.world.stages import build_all, resolve

    module = import_module(PLANS[options.study])
    plan, make = module.PLAN, getattr(module, "make", Study)
    steps = options.steps or getattr(module, "STEPS", Setting.steps)
    study = make(plan, options.output_dir, Setting(row="xe", steps=steps, size=options.size))
    build_all(options.size, seeds=study.seeds)
    for start in plan.starts:
        for seed in study.seeds:
            resolve(STARTS[start], size=options.size, seed=seed)
    for stage in dict.fromkeys(stage for row in (*plan.rows, *plan.on_val) for stage in ROWS[row].stages):
        resolve(stage, size=options.size)
    study.run(workers=options.workers)
    given = reference_rows(World.load(options.size), meteor="meteor" in plan.further_measures)
    references = {result.name: result.metrics for result in given}
    write_page(study, options.docs / plan.page, references=references)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", choices=tuple(PLANS), default="world")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study"))
    parser.add_argument("--docs", type=Path, default=Path("docs/results"), help="folder the page is written to")
    parser.add_argument("--steps", type=int, help="of each training; default: the study's own")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time, one thread each")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
