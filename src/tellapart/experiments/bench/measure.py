"""One row of the table with one seed: trained unless it is, then measured on test as far as no study has measured it.

``python -m tellapart.experiments.bench.measure --row dico --learning_rate 3e-5 --knob 0.2 --output_dir runs/study/...``
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.experiments.bench.command import on_one_thread
from tellapart.experiments.bench.stored import evaluated, sampled
from tellapart.experiments.bench.table import COLUMNS
from tellapart.experiments.jobs import Job
from tellapart.experiments.sle_rows import SAMPLES
from tellapart.experiments.world_run import TRAINED, Setting, load_checkpoint, points_of, run
from tellapart.files import write_json
from tellapart.world.protocol import measured_on_test
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.results import EvaluationResult
    from tellapart.experiments.world import World
    from tellapart.types import Decoding

MEASURED = "bench.json"
OWN = "bench"
"""Folder of the evaluations that no study has: what a study saved under the same name has more in it, and stays."""

METEOR = "METEOR"


def job(setting: Setting, root: Path) -> Job:
    """The process that trains and measures a setting under ``root``, where studies keep theirs, too."""
    options = tuple(f"--{name}={value}" for name, value in asdict(setting).items() if value is not None)
    name = f"{setting.row} (seed {setting.seed})"
    protocol = protocol_of(setting.size)
    return Job(name, __spec__.name, options, root / setting.key(), setting.steps, MEASURED, protocol=protocol)


def protocol_of(size: str) -> dict[str, str]:
    """How all rows are measured: data, the two decodings and version, as ``bench.json`` keeps them."""
    name, decoding = _drawn()
    return measured_on_test(size, {"greedy": _greedy(), name: decoding})


def _greedy() -> Decoding:
    from tellapart.types import Decoding

    return Decoding(max_new_tokens=MAX_NEW_TOKENS)


def _drawn() -> tuple[str, Decoding]:
    """Name and decoding of the samples."""
    from tellapart.evaluation.sets import set_decodings

    return next(iter(set_decodings(SAMPLES, MAX_NEW_TOKENS).items()))


def measure(setting: Setting, output_dir: Path) -> None:
    """Write ``bench.json``: the selected and the last checkpoint by greedy captions, the selected one's sets, too."""
    if not (output_dir / TRAINED).exists():
        run(setting, output_dir, test=False)
    trained, found = Trained(setting, output_dir), dict[str, dict[str, float]]()
    for point in sorted(points_of(output_dir), reverse=True):
        if point == "last" and trained.selected_last:  # the same weights a second time
            found[point] = dict(found["selected"])
        else:
            found[point] = trained.greedy(point)
    found["selected"] |= trained.samples()
    protocol = protocol_of(setting.size)
    write_json(output_dir / MEASURED, {"setting": asdict(setting), "protocol": protocol, "test": found})


@dataclass
class Trained:
    """A finished training on the test split; its captioner is loaded only if something is left to be drawn.

    Args:
        setting: of the training.
        output_dir: of the training.
    """

    setting: Setting
    output_dir: Path

    @property
    def selected_last(self) -> bool:
        """Whether the last step is the selected one."""
        noted = json.loads((self.output_dir / TRAINED).read_text(encoding="utf-8"))
        return noted["selected_step"] == self.setting.steps

    @cached_property
    def dataset(self) -> CaptionDataset:
        """The test split, without listeners."""
        from tellapart.world import load_world

        return load_world("test", size=self.setting.size)

    def greedy(self, point: str) -> dict[str, float]:
        """The metrics of a checkpoint's greedy captions: as a study saved them, with METEOR of its captions, or measured now."""
        from tellapart.evaluation.meteor import MeteorMeasure

        result = self._evaluated(self.output_dir / point) or self._evaluated(self.output_dir / OWN / point)
        if result is None:
            parts = self._parts(point)
            result = parts.evaluation("test")(parts.captioner, name=self.setting.row)
            result.save(self.output_dir / OWN / point)
        if METEOR in result.metrics:
            return result.metrics
        return result.metrics | MeteorMeasure(self.dataset.references)(result.captions)[0]

    def samples(self) -> dict[str, float]:
        """Five captions of each image, drawn at temperature 1: how different they are."""
        from tellapart.evaluation.sets import draw_sets, set_measures

        name, decoding = _drawn()
        asked = measured_on_test(self.setting.size, {name: decoding})
        # a marker that does not say how it was measured was written with the study's evaluation, which does
        unsigned = self._evaluated(self.output_dir / "selected") is not None
        found = sampled(self.output_dir, self.setting, name, asked, unsigned=unsigned)
        if found is not None:
            return found
        parts = self._parts("selected")
        sets = draw_sets(parts.captioner, self.dataset, parts.collate, decoding)
        return set_measures(sets, self.dataset.references, name)[0]

    def _evaluated(self, folder: Path) -> EvaluationResult | None:
        needed = [key for key in COLUMNS if key != METEOR and not key.startswith("rs")]
        return evaluated(folder, self.dataset, _greedy(), needed)

    @cached_property
    def _world(self) -> World:
        from tellapart.experiments.world import World

        return World.load(self.setting.size, self.setting.seed, self.setting.start)

    def _parts(self, point: str) -> World:
        """The world with the captioner as a checkpoint has it."""
        load_checkpoint(self._world, self.output_dir, point, own_listener=False)
        return self._world


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and run on one thread."""
    on_one_thread(measure, argv, __doc__)


if __name__ == "__main__":
    main()
