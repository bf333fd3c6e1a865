"""Train and measure what the table lacks, then write it: resumable, since every training is kept by its settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tellapart.experiments.bench import measure, seconds
from tellapart.experiments.bench.entries import Entry
from tellapart.experiments.bench.table import Line
from tellapart.experiments.jobs import Job, require, run_jobs
from tellapart.experiments.world_rows import STARTS
from tellapart.experiments.world_run import ROWS, Setting

POINTS = ("selected", "last")


@dataclass(frozen=True)
class Bench:
    """What is laid side by side, and where its trainings are.

    Args:
        entries: the rows.
        root: folder of the trainings; one that a study keeps there, too, is used as it is.
        base: steps, images and size that all trainings share.
        seeds: of the trainings.
    """

    entries: Sequence[Entry]
    root: Path
    base: Setting
    seeds: tuple[int, ...] = (0, 1, 2)

    def missing(self) -> list[Job]:
        """What is still to be trained or measured."""
        return [job for job in self._jobs() if not job.done()]

    def run(self, *, workers: int = 2) -> None:
        """Do what is missing; steps are timed afterwards, one row at a time.

        Raises:
            UsageError: a training failed; the others are kept.
        """
        from tellapart.world.stages import build_all, resolve

        build_all(self.base.size, seeds=self.seeds)
        for entry in self.entries:
            for seed in self.seeds:
                resolve(entry.setting(self.base, seed).start, size=self.base.size, seed=seed)
            for stage in ROWS[entry.row].stages if entry.row in ROWS else ():
                resolve(stage, size=self.base.size)
        require(run_jobs(self._jobs(), "training and measuring", workers=workers))
        require(run_jobs(self._timings(), "timing a step", workers=1))

    def lines(self, point: str) -> list[Line]:
        """The table's rows at ``selected`` or ``last``; a start captioner has but one point, which stands in both."""
        found = []
        for entry in self.entries:
            tested = [self._tested(entry, seed) for seed in self.seeds]
            metrics = [one.get(point, one["selected"]) for one in tested]
            said = entry.otherwise(self.base)
            name = f"{entry.row} ({said})" if said else entry.row
            found.append(Line(name, metrics, self._seconds(entry)))
        return found

    def _jobs(self) -> list[Job]:
        return [measure.job(entry.setting(self.base, seed), self.root) for seed in self.seeds for entry in self.entries]

    def _timings(self) -> list[Job]:
        trained = [entry for entry in self.entries if entry.row not in STARTS]
        return [seconds.job(entry.setting(self.base, self.seeds[0]), self.root) for entry in trained]

    def _tested(self, entry: Entry, seed: int) -> dict[str, dict[str, float]]:
        path = self.root / entry.setting(self.base, seed).key() / measure.MEASURED
        return json.loads(path.read_text(encoding="utf-8"))["test"]

    def _seconds(self, entry: Entry) -> float | None:
        if entry.row in STARTS:
            return None
        job = seconds.job(entry.setting(self.base, self.seeds[0]), self.root)
        return json.loads((job.folder / seconds.SECONDS).read_text(encoding="utf-8"))["seconds"]
