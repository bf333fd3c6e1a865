"""The page on PSST: curves of discriminability against naturalness, one per method, and the sweep of rho."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tellapart.metrics.curves import crossings
from tellapart.sweep.claims import Claim, Seeds, markdown_table, said, scale_of
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from tellapart.sweep.tasks import Task

RHO = {f"psst, rho {rho}": rho for rho in ("0", "0.5", "0.75", "1")} | {"psst": "0.25"}
ENDS = ("0", "1")
OWN = "own_listener_R@1"
WORDING = {"Bleu_4": "BLEU-4", "METEOR": "METEOR", "ROUGE_L": "ROUGE-L"}
READ = {OWN: "own R@1", "listener_R@1": "listener R@1", "exact_recall@1": "exact_recall@1"}
SHOWN = {"CIDEr": "CIDEr", OWN: READ[OWN]}
TRUTH = {"truthful": "truthful"}
FIXED = {"CIDEr": READ | WORDING | TRUTH, OWN: {"CIDEr": "CIDEr"} | WORDING | TRUTH}
"""Fixed metric -> what is read of each curve over weights, with its heading."""

FIXED_OVER_STEPS = {
    "CIDEr": {OWN: READ[OWN], "exact_recall@1": READ["exact_recall@1"]} | TRUTH,
    OWN: {"CIDEr": "CIDEr"},
}
"""The same of training curves; val has no METEOR."""

STEP_LEVELS = 4
"""Values of the fixed metric at which training curves are read."""


def sections(study: Study) -> Iterator[str]:
    """What each curve over weights, and each training, reads at fixed CIDEr and at fixed own recall."""
    for fixed, columns in FIXED.items():
        yield _over_weights(study, fixed, columns)
    for fixed, columns in FIXED_OVER_STEPS.items():
        yield from _over_steps(study, fixed, columns)


def curved(study: Study) -> list[str]:
    """The rows with a curve over weights."""
    return [name for name, row in study.file.rows.items() if row.curve]


def levels(study: Study, fixed: str) -> dict[float, list[str]]:
    """Values of a metric -> the rows whose curves over weights enclose it in every seed, by rising value.

    The first is the middle of the range that most rows enclose. Further ones follow in the same way, until each row that encloses
    any value in every seed has one.

    Args:
        study: finished.
        fixed: the metric.
    """
    found = {name: study.common_range([name], fixed) for name in curved(study)}
    ranges = {name: span for name, span in found.items() if span}
    chosen, left = dict[float, list[str]](), set(ranges)
    while left:
        middle, names = _most(ranges, left)
        chosen[middle] = names
        left.difference_update(names)
    return dict(sorted(chosen.items()))


def _most(ranges: Mapping[str, tuple[float, float]], left: set[str]) -> tuple[float, list[str]]:
    """The middle of the range that most rows share, one of ``left`` among them, and these rows; of equal ones the widest."""
    found = []
    for low, high in pairwise(sorted({end for span in ranges.values() for end in span})):
        names = [name for name, (first, last) in ranges.items() if first <= low and high <= last]
        if left.intersection(names):
            found.append((len(names), high - low, (low + high) / 2, names))
    return max(found)[2:]


def _over_weights(study: Study, fixed: str, columns: Mapping[str, str]) -> str:
    """A table with a group of lines per value of the fixed metric."""
    chosen, scale = levels(study, fixed), scale_of(fixed)
    lines = [
        [f"{scale * value:.1f}", name, *(said(study.at_fixed(name, fixed, value, key)) for key in columns)]
        for value, names in chosen.items()
        for name in names
    ]
    without = [f"`{name}`" for name in curved(study) if not any(name in names for names in chosen.values())]
    named = f" Curves that enclose no {SHOWN[fixed]} in every seed: {', '.join(without)}." if without else ""
    return (
        f"## At fixed {SHOWN[fixed]}, over weights (test, greedy, last step)\n\n"
        f"{markdown_table([SHOWN[fixed], 'method', *columns.values()], lines)}\n\n"
        f"Each seed is read on its own curve, on a line between neighbouring weights. One value of {SHOWN[fixed]} is the middle "
        "of the range that most curves enclose in every seed; the others are chosen in the same way until every row that "
        f"encloses any is listed.{named}"
    )


def step_levels(trainings: Mapping[str, Sequence[Task]], fixed: str) -> list[float]:
    """Values of a metric on val that most trainings pass, evenly from the highest start to what half of the rows reach in every
    seed.

    Args:
        trainings: name of a measured row -> its trainings.
        fixed: the metric.
    """
    curves = {name: [_watched(task, fixed) for task in tasks] for name, tasks in trainings.items()}
    low = max(curve[0] for found in curves.values() for curve in found)
    high = statistics.median_low([min(max(curve) for curve in found) for found in curves.values()])
    return [low + (high - low) * share / STEP_LEVELS for share in range(1, STEP_LEVELS + 1)] if low < high else []


def over_steps(tasks: Sequence[Task], fixed: str, at: float, key: str) -> Seeds | None:
    """A metric on val where training first passes a value of another; None where a seed does not pass it.

    Args:
        tasks: the trainings of a row, one per seed.
        fixed: the metric that is fixed.
        at: its value, as it is stored.
        key: the metric to read.
    """
    found = [crossings(_watched(task, fixed), _watched(task, key), at)[:1] for task in tasks]
    return Seeds([scale_of(key) * one for (one,) in found]) if all(found) else None


def _watched(task: Task, key: str) -> list[float]:
    """A metric on val by rising steps."""
    return [metrics[key] for _, metrics in sorted(task.watched().items())]


def _over_steps(study: Study, fixed: str, columns: Mapping[str, str]) -> Iterator[str]:
    """A table per metric: a line per row and weight, a column per value of the fixed metric; nothing where there is no value."""
    trainings = {shown: study.measured[shown] for name in curved(study) for shown in study.curve(name).values()}
    values, scale = step_levels(trainings, fixed), scale_of(fixed)
    if not values:
        return
    parts = [
        f"## At fixed {SHOWN[fixed]}, over steps (val, greedy)\n\nEach seed is read where its training first passes the value, "
        f"on a line between neighbouring evaluations; *unreached* where a seed does not pass it. The values of {SHOWN[fixed]} "
        "lie evenly between the highest start and what half of the rows and weights reach in every seed."
    ]
    for key, heading in columns.items():
        lines = [
            [name, *(said(over_steps(found, fixed, at, key)) for at in values)] for name, found in trainings.items()
        ]
        heads = [heading, *(f"{SHOWN[fixed]} {scale * value:.1f}" for value in values)]
        parts.append(markdown_table(heads, lines))
    yield "\n\n".join(parts)


def claims(study: Study) -> Iterator[Claim]:
    """The published orderings: own recall at equal CIDEr, in the middle of what the compared curves enclose, or CIDEr at equal
    own recall where they enclose no CIDEr."""
    for other in ("st_multinomial", "reinforce_joint", "luo2018", "sr_pl"):
        yield _above(study, "psst", other)
    for other in ("st_gumbel", "reinforce_joint", "sr_pl"):
        yield _above(study, "psst_gumbel", other)
    for other in ("st_multinomial", "reinforce_joint"):
        yield _above(study, other, "luo2018")
    yield _interior(study)


def _above(study: Study, higher: str, lower: str) -> Claim:
    for fixed, metric in (("CIDEr", OWN), (OWN, "CIDEr")):
        value = study.common_middle((higher, lower), fixed)
        if value is not None:
            ours, theirs = (study.at_fixed(row, fixed, value, metric) for row in (higher, lower))
            holds = ours is not None and theirs is not None and ours.above(theirs)
            text = f"{higher} has a higher {SHOWN[metric]} than {lower} at equal {SHOWN[fixed]}."
            at = f"{SHOWN[fixed]} {scale_of(fixed) * value:.0f}"
            return Claim(text, holds, f"{said(ours)} against {said(theirs)} at {at}.")
    text = f"{higher} has a higher own R@1 than {lower} at equal CIDEr."
    return Claim(text, False, "all seeds of both enclose neither a CIDEr nor an own R@1.")


def _interior(study: Study) -> Claim:
    """Between the two weights that all have, for a curve with more points bends."""
    weights = list(study.curve("psst, rho 0"))
    text = "Some rho between 0 and 1 beats both ends (own R@1 at equal CIDEr)."
    value = study.common_middle(tuple(RHO), "CIDEr", values=weights)
    if value is None:
        return Claim(text, False, "no CIDEr is enclosed by all of them.")
    read = {rho: study.at_fixed(row, "CIDEr", value, OWN, values=weights) for row, rho in RHO.items()}
    found = {rho: seeds for rho, seeds in read.items() if seeds is not None}
    holds = any(all(found[rho].above(found[end]) for end in ENDS) for rho in found if rho not in ENDS)
    evidence = ", ".join(f"rho {rho}: {said(found[rho])}" for rho in sorted(found, key=float))
    return Claim(text, holds, f"{evidence} at CIDEr {100 * value:.0f}.")


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
