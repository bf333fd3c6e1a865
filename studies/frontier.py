"""Five methods on the built-in world, a whole curve of each: tables and pictures for ``docs/results/frontier.md``.

``python studies/frontier.py`` runs ``tellapart frontier`` with the grids below. Options that it does not know are those of that
command, such as ``--max_steps 2 --seeds 1``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tellapart.cli.frontier import plan
from tellapart.cli.frontier_words import read_words
from tellapart.cli.main import main as tellapart
from tellapart.files import write_text
from tellapart.sweep.frontier.write import NAMES, TABLES_FILE
from tellapart.sweep.kept import kept_folder
from tellapart.sweep.page_parts import hours_text
from tellapart.sweep.tasks import Sweep, Task, distinct

CURVES = {
    "dico": ("world_ved_dico", "objective.beta=0.05,0.1,0.2,0.5"),
    "scst-CLIP+KL": ("world_ved_scst_clip_kl", "objective.kl_coef=0.003,0.01,0.03,0.1"),
    "psst": ("world_ved_psst", "objective.discriminability_weight=0.0133,0.1,0.5,0.9"),
    "wtf_rl, clamped and centred": ("world_ved_wtf_rl_stable", "objective.alpha=0.5,0.8,0.94,1.0"),
    "dico on truth, likelihood and CIDEr-D": ("world_ved_dico_truth_cider", "reward.cider_d=0.0125,0.025,0.05,0.1"),
}
"""Label -> recipe, and the grid of its knob."""

TITLE = "The frontier on the world"
TABLES = "frontier-tables.md"


def words(options: argparse.Namespace, further: list[str]) -> list[str]:
    """The words behind ``tellapart frontier``."""
    curves = [word for label, (recipe, grid) in CURVES.items() for word in (recipe, "--grid", grid, "--label", label)]
    kept = ["--kept", str(options.kept)] if options.kept else []
    dry_run = ["--dry_run"] if options.dry_run else []
    common = ["--seeds", "3", "--split", "test", "--data.size", options.size, "--title", TITLE]
    where = ["--output_dir", str(options.output_dir), "--workers", str(options.workers)]
    return [*curves, *common, *where, *kept, *dry_run, *further]


def trained(argv: list[str]) -> list[Task]:
    """The trainings, without the start captioners."""
    read = read_words(argv)
    kept = kept_folder(read.options.kept, read.options.output_dir) if read.options.kept else None
    curves = plan(read, Sweep(read.options.output_dir, common=read.overrides, kept=kept))
    return [task for task in distinct(task for curve in curves for task in curve.everything()) if task.trains]


def write_docs(folder: Path, docs: Path, hours: str) -> None:
    """Put tables and pictures next to the page that a person writes."""
    tables = (folder / TABLES_FILE).read_text(encoding="utf-8")
    tables = tables.replace(f"# {TITLE}\n", f"# {TITLE}: tables\n", 1)
    write_text(docs / TABLES, f"{tables}\n{hours}\n")
    for name in NAMES.values():
        shutil.copyfile(folder / f"{name}.png", docs / f"{name}.png")


def main(argv: list[str] | None = None) -> None:
    """Train what is missing, and write tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study"), help="folder of all trainings")
    parser.add_argument("--docs", type=Path, default=Path("docs/results"), help="folder of tables and pictures")
    parser.add_argument("--size", choices=("full", "small"), default="full", help="of the built-in world")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time, one thread each")
    parser.add_argument("--kept", type=Path, help="archive of results without weights, which is updated")
    parser.add_argument("--dry_run", action="store_true", help="list what is done and what is not, and train nothing")
    options, further = parser.parse_known_args(argv)
    asked = words(options, further)
    code = tellapart(["frontier", *asked])
    if code == 0 and not options.dry_run:
        options.docs.mkdir(parents=True, exist_ok=True)
        write_docs(options.output_dir, options.docs, hours_text(trained(asked)))
    sys.exit(code)


if __name__ == "__main__":
    main()
