"""What a training step of a row costs: CPU seconds, with nothing of ours beside it.

``python -m tellapart.experiments.bench.seconds --row dico --learning_rate 3e-5 --knob 0.2 --output_dir runs/study/seconds/...``
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tellapart.experiments.bench.command import on_one_thread
from tellapart.experiments.jobs import Job
from tellapart.experiments.world_run import Setting
from tellapart.files import write_json

WARM, TIMED = 2, 6
"""Steps that are left out, since they fill caches, and steps that are timed."""

SECONDS = "seconds.json"


def job(setting: Setting, root: Path) -> Job:
    """The process that times a setting's row under ``root``."""
    options = tuple(f"--{name}={value}" for name, value in asdict(setting).items() if value is not None)
    return Job(setting.row, __spec__.name, options, root / "seconds" / setting.key(), WARM + TIMED, SECONDS)


def time_steps(setting: Setting, output_dir: Path) -> None:
    """Train a few steps in a folder that is thrown away; write the mean CPU seconds of those after the first ones."""
    from tellapart.experiments.world import World
    from tellapart.experiments.world_run import ROWS
    from tellapart.training.config import TrainConfig
    from tellapart.training.loop import train

    parts = World.load(setting.size, setting.seed, setting.start)
    row = ROWS[setting.row]
    objective, data, clock = row.build(parts, setting.knob), parts.training_data(), list[float]()

    def look(_: Any) -> dict[str, float]:
        clock.append(time.process_time())
        return {}

    with TemporaryDirectory() as folder:
        config = TrainConfig(
            output_dir=Path(folder),
            learning_rate=row.rates(setting.learning_rate),
            max_steps=WARM + TIMED,
            per_device_train_batch_size=setting.images,
            eval_steps=1,
            seed=setting.seed,
            **row.options,
        )
        train(objective, data, config, evaluate=look)
    write_json(output_dir / SECONDS, {"setting": asdict(setting), "seconds": (clock[-1] - clock[WARM]) / TIMED})


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and run on one thread."""
    on_one_thread(time_steps, argv, __doc__)


if __name__ == "__main__":
    main()
