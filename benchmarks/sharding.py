"""Peak memory of two processes on a CPU that train one captioner, for every ``training.shard``.

The captioner is a CLIP tower and a GPT-2 whose weights dominate: all of it learns, from four images of a few words per step.
Compared is the growth of a process's resident memory from before the captioner is made to its highest value in two whole steps
(``VmHWM`` of Linux, reset before each run), with freed blocks given back to the system at once (``MALLOC_MMAP_THRESHOLD_``).
Evaluations and checkpoints are not counted.

    python benchmarks/sharding.py [--layers 24] [--width 320]        # the table of docs/how-to/scale.md
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARDS = ("none", "grad_op", "full")
RUNS = [(method, bf16, shard) for method in ("xe", "scst") for bf16 in (False, True) for shard in SHARDS]
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(field: str) -> float:
    """MiB of this process: ``VmRSS`` now, ``VmHWM`` at the highest."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


class Enough(Exception):
    """Two steps are done."""


def measured(method: str, bf16: bool, shard: str, layers: int, width: int, folder: Path) -> dict[str, float]:
    """MiB that this process took for two steps, and those of the captioner's weights."""
    from family_checks import lengths, pictures
    from tellapart.data.dataset import Collate
    from tellapart.data.loader import TrainingData
    from tellapart.objectives.scst import SCST
    from tellapart.objectives.xe import XE
    from tellapart.training.config import TrainConfig
    from tellapart.training.loop import train
    from tiny_models import tiny_ved

    gc.collect()
    CLEAR.write_text("5")
    start, peaks = resident("VmRSS"), list[float]()
    captioner = tiny_ved(layers=layers, width=width, std=0.02, train="all")
    weights = sum(p.nbytes for p in captioner.parameters()) / 2**20
    made: Any = XE(captioner) if method == "xe" else SCST(captioner, lengths, num_generations=2, max_new_tokens=6)

    class Measured(type(made)):  # type: ignore[misc]
        """Notes the highest value when the third step begins."""

        def collect(self, batch: Any, step: int) -> Any:
            if step == 2:
                peaks.append(resident("VmHWM") - start)
                raise Enough
            return super().collect(batch, step)

    made.__class__ = Measured
    config = TrainConfig(
        output_dir=folder, max_steps=3, per_device_train_batch_size=2, bf16=bf16, shard=shard, learning_rate=1e-6
    )
    try:
        train(made, TrainingData(pictures(6), Collate({captioner.name: captioner.process})), config)
    except Enough:
        return {"peak": peaks[0], "weights": weights}
    raise AssertionError("three steps were asked for")


def one(folder: Path, layers: int, width: int) -> None:
    """All runs in this process; the results are written to ``folder``."""
    import torch

    torch.set_num_threads(1)
    import os

    found = []
    for number, (method, bf16, shard) in enumerate([("xe", False, "none"), *RUNS]):  # the first loads the libraries
        found.append(
            measured(method, bf16, shard, layers if number else 1, width if number else 32, folder / str(number))
        )
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found[1:]))
    torch.distributed.barrier()


def main() -> None:
    """Measure every run, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--folder", type=Path, help="of a process that measures")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    if asked.folder is not None:
        one(asked.folder, asked.layers, asked.width)
        return
    from two_processes import run_two

    with tempfile.TemporaryDirectory() as name:
        words = (__file__, "--layers", str(asked.layers), "--width", str(asked.width), "--folder", name)
        run_two(*words, timeout=3000, MALLOC_MMAP_THRESHOLD_="65536", PYTHONPATH=str(ROOT / "src"))
        ranks = [json.loads((Path(name) / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    print("| method | bf16 | training.shard | peak, MB | share of replicas |\n|---|---|---|---|---|")
    whole = 0.0
    for (method, bf16, shard), *each in zip(RUNS, *ranks, strict=True):
        peak = max(found["peak"] for found in each)
        whole = peak if shard == "none" else whole
        print(f"| {method} | {'yes' if bf16 else 'no'} | {shard} | {peak:.0f} | {peak / whole:.2f} |")
    print(f"\nweights: {ranks[0][0]['weights']:.0f} MB in float32")


if __name__ == "__main__":
    main()
