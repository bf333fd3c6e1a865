"""One row of the table with one seed: trained unless it is, then measured on test.

``python -m tellapart.experiments.bench.measure --row dico --learning_rate 3e-5 --knob 0.2 --output_dir runs/study/...``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.experiments.bench.command import on_one_thread
from tellapart.experiments.jobs import Job
from tellapart.experiments.sle_rows import SAMPLES
from tellapart.experiments.world_rows import MAX_NEW_TOKENS
from tellapart.experiments.world_run import Setting, load_checkpoint, run
from tellapart.files import write_json

if TYPE_CHECKING:
    from tellapart.experiments.world import World

MEASURED = "bench.json"


def job(setting: Setting, root: Path) -> Job:
    """The process that trains and measures a setting under ``root``, where studies keep theirs, too."""
    options = tuple(f"--{name}={value}" for name, value in asdict(setting).items() if value is not None)
    name = f"{setting.row} (seed {setting.seed})"
    return Job(name, __spec__.name, options, root / setting.key(), setting.steps, MEASURED)


def measure(setting: Setting, output_dir: Path) -> None:
    """Write ``bench.json``: the selected and the last checkpoint by greedy captions, the selected one's sets, too."""
    from tellapart.experiments.world import World

    run(setting, output_dir, test=False)
    found: dict[str, dict[str, float]] = {}
    for point in ("last", "selected"):
        parts = World.load(setting.size, setting.seed, setting.start)
        if load_checkpoint(parts, output_dir, point):
            found[point] = _greedy(parts, setting, output_dir / point)
            if point == "selected":
                found[point] |= _samples(parts)
    write_json(output_dir / MEASURED, {"setting": asdict(setting), "test": found})


def _greedy(parts: World, setting: Setting, folder: Path) -> dict[str, float]:
    from tellapart.evaluation.meteor import MeteorMeasure

    meteor = MeteorMeasure(parts.dataset("test").references)
    result = parts.evaluation("test", measures=(meteor,))(parts.captioner, name=setting.row)
    result.save(folder)
    return result.metrics


def _samples(parts: World) -> dict[str, float]:
    """Five captions of each image, drawn at temperature 1: how different they are."""
    from tellapart.evaluation.sets import draw_sets, set_decodings, set_measures

    dataset = parts.dataset("test")
    name, decoding = next(iter(set_decodings(SAMPLES, MAX_NEW_TOKENS).items()))
    sets = draw_sets(parts.captioner, dataset, parts.collate, decoding)
    return set_measures(sets, dataset.references, name)[0]


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and run on one thread."""
    on_one_thread(measure, argv, __doc__)


if __name__ == "__main__":
    main()
