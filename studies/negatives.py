"""The page on WTF-RL's negatives: mined look-alikes against other images at random."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tellapart.sweep.claims import Claim, Seeds, markdown_table
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from tellapart.sweep.tasks import Task

METHODS = ("rl", "wtf_rl", "wtf_rl, clamped and centred")
FOUND = {"listener_R@1": "listener R@1", "exact_recall@1": "exact recall"}

STEPS = 5
"""Steps from the first one whose rewards are averaged."""
REWARDS = {
    "rewards/t2i": "drawn, image part",
    "rewards/i2t": "drawn, text part",
    "reference/rewards/t2i": "human, image part",
    "reference/rewards/i2t": "human, text part",
}


def claims(study: Study) -> Iterator[Claim]:
    """Whether mined negatives tell more images apart, on test with greedy captions of the selected checkpoint."""
    for method in METHODS:
        for key, shown in FOUND.items():
            mined, random = (study.read(f"{method}, {kind}", key) for kind in ("mined", "random"))
            text = f"{method} has a higher {shown} with mined than with random negatives."
            yield Claim(text, mined.above(random), f"{mined} against {random}.")


def sections(study: Study) -> Iterator[str]:
    """The parts of the contrastive reward at the begin of training."""
    rows = [f"{method}, {kind}" for method in METHODS for kind in ("mined", "random")]
    lines = [[row, *(_mean(study.measured[row], key) for key in REWARDS)] for row in rows]
    table = markdown_table(["row", *REWARDS.values()], lines)
    told = "Times 100, as applied. `rl` does not learn from human captions."
    yield f"## Contrastive reward in the first {STEPS} steps\n\n{table}\n\n{told}"


def _mean(tasks: Sequence[Task], key: str) -> str:
    """A logged reward over seeds; a dash where it is not logged."""
    logs = [[line[key] for line in task.history if key in line][:STEPS] for task in tasks]
    return str(Seeds([100 * statistics.fmean(values) for values in logs])) if all(logs) else "-"


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
