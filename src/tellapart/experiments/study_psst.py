"""The page on PSST: curves of discriminability against naturalness, one a method, and the sweep of rho."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.experiments.psst_rows import PSST_ROWS, SWEPT_WEIGHTS
from tellapart.experiments.study_curves import CurveStudy, at_fixed, common_middle
from tellapart.experiments.study_plan import Claim, Columns, Plan, Reader, Seeds

if TYPE_CHECKING:
    from tellapart.experiments.study import Study
    from tellapart.experiments.world_run import Setting

SEEDED = ("psst", "st_multinomial", "reinforce_joint", "luo2018")
"""Rows that are measured with every seed."""

RHO = {f"psst, rho {rho}": rho for rho in ("0", "0.5", "0.75", "1")} | {"psst": "0.25"}

ENDS = ("0", "1")

LISTENING: Columns = {
    f"{who}_R@{k}": (f"{heading} R@{k}", 1.0)
    for who, heading in {"own_listener": "own", "listener": "listener", "judge": "judge"}.items()
    for k in (1, 5, 10)
} | {"exact_recall@1": ("exact_recall@1", 1.0), "own_listener_human_R@1": ("own, human captions R@1", 1.0)}

WRITING: Columns = {
    "CIDEr": ("CIDEr", 100.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "hallucinated": ("hallucinated", 1.0),
    "detail": ("detail", 1.0),
    "perplexity": ("perplexity", 1.0),
    "Self-BLEU": ("Self-BLEU", 1.0),
    "distinct_captions": ("distinct", 1.0),
    "mean_length": ("words", 1.0),
}

READ = {"own_listener_R@1": "own R@1", "listener_R@1": "listener R@1", "exact_recall@1": "exact_recall@1"}
SHARES = (0.9, 1.0, 1.1, 1.2)
"""CIDEr that curves are read at, as a share of the start captioner's."""

INTRODUCTION = """Vered et al. (ICCV 2019) on the built-in world: captioner and listener learn together, through words that are
passed as distributions (`psst`), as drawn words with straight-through gradients (`st_...`), or not at all (`reinforce_joint`);
the listener stays in `luo2018`, the captioner in `listener_only`. Behind a row's name stands the weight of discriminability,
the paper's lambda, whose scale is each method's own, so that only curves may be compared. *own* is the listener that
learned with the captioner (`xe` has none), *listener* the one it started from. How to read it is in
[world-psst-analysis.md](world-psst-analysis.md). Made by `make study STUDY=psst`. The learning rate of each method is chosen at
one weight, the third; `psst` with another rho takes that of `psst`; `listener_only` is chosen by own
R@1. Three seeds are measured of psst, st_multinomial, reinforce_joint and luo2018, one of the rest; the sweep of rho has two
weights, between which psst is read beside it, too."""


def make(plan: Plan, root: Path, base: Setting) -> CurveStudy:
    """The study, with the seeds and learning rates of its rows."""
    single = tuple(row for row in PSST_ROWS if row not in SEEDED)
    rates = dict.fromkeys((row for row in PSST_ROWS if row.startswith("psst, rho")), "psst")
    return CurveStudy(plan, root, base, one_seed=single, rate_of=rates)


def sections(study: Study) -> list[str]:
    """What each curve reads at fixed CIDEr, at the last step."""
    assert isinstance(study, CurveStudy)
    start = Reader(study).metric("xe", "CIDEr").mean
    rows = [row for row in PSST_ROWS if row != "listener_only"]
    return [
        f"## {heading} at fixed CIDEr (test, greedy, last step)\n\n{_readings(study, rows, metric, start)}"
        for metric, heading in READ.items()
    ]


def _readings(study: CurveStudy, rows: list[str], metric: str, start: float) -> str:
    lines = ["| method | " + " | ".join(f"CIDEr {100 * share * start:.0f}" for share in SHARES) + " |"]
    lines.append("|---" * (len(SHARES) + 1) + "|")
    for row in rows:
        cells = [_said(at_fixed(study, row, "CIDEr", share * start, metric)) for share in SHARES]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    text = "Each seed is read on its own curve, on a line between neighbouring weights;"
    return "\n".join(lines) + f"\n\n{text} *unreached* where a seed's curve does not enclose the value."


def _said(found: Seeds | None) -> str:
    return "unreached" if found is None else str(found)


def claims(study: Study) -> list[Claim]:
    """The published orderings: own recall at equal CIDEr, in the middle of what the compared curves enclose."""
    assert isinstance(study, CurveStudy)
    found = [_above(study, "psst", other) for other in ("st_multinomial", "reinforce_joint", "luo2018")]
    found += [_above(study, other, "luo2018") for other in ("st_multinomial", "reinforce_joint")]
    return [*found, _interior(study)]


def _above(study: CurveStudy, higher: str, lower: str) -> Claim:
    text = f"{higher} has a higher own R@1 than {lower} at equal CIDEr."
    value = common_middle(study, (higher, lower), "CIDEr")
    if value is None:
        return Claim(text, False, "no CIDEr is enclosed by all seeds of both.")
    ours, theirs = (at_fixed(study, row, "CIDEr", value, "own_listener_R@1") for row in (higher, lower))
    holds = ours is not None and theirs is not None and ours.above(theirs)
    return Claim(text, holds, f"{_said(ours)} against {_said(theirs)} at CIDEr {100 * value:.0f}.")


def _interior(study: CurveStudy) -> Claim:
    """First seeds, since the ends have no others."""
    text = "Some rho between 0 and 1 beats both ends (seed 0, own R@1 at equal CIDEr)."
    value = common_middle(study, tuple(RHO), "CIDEr", knobs=SWEPT_WEIGHTS)
    if value is None:
        return Claim(text, False, "no CIDEr is enclosed by all of them.")
    read = {
        rho: at_fixed(study, row, "CIDEr", value, "own_listener_R@1", knobs=SWEPT_WEIGHTS) for row, rho in RHO.items()
    }
    first = {rho: found.values[0] for rho, found in read.items() if found is not None}
    holds = max(value for rho, value in first.items() if rho not in ENDS) > max(first[rho] for rho in ENDS)
    said = ", ".join(f"rho {rho}: {first[rho]:.1f}" for rho in sorted(first, key=float))
    return Claim(text, holds, f"{said} at CIDEr {100 * value:.0f}.")


PLAN = Plan(
    page="world-psst.md",
    title="PSST on the world",
    introduction=INTRODUCTION,
    rows=tuple(PSST_ROWS),
    tables={"listening": LISTENING, "writing": WRITING},
    claims=claims,
    further_measures=("own",),
    sections=sections,
)
