"""The page on PSST: curves of discriminability against naturalness, one per method, and the sweep of rho."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim, markdown_table, said
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study

RHO = {f"psst, rho {rho}": rho for rho in ("0", "0.5", "0.75", "1")} | {"psst": "0.25"}
ENDS = ("0", "1")
OWN = "own_listener_R@1"
READ = {OWN: "own R@1", "listener_R@1": "listener R@1", "exact_recall@1": "exact_recall@1"}
SHARES = (0.9, 1.0, 1.1, 1.2)
"""CIDEr that curves are read at, as a share of the start captioner's."""


def sections(study: Study) -> Iterator[str]:
    """What each curve reads at fixed CIDEr, at the last step."""
    start = study.read("xe", "CIDEr", factor=1).mean
    heads = ["method", *(f"CIDEr {100 * share * start:.0f}" for share in SHARES)]
    text = "Each seed is read on its own curve, on a line between neighbouring weights;"
    for metric, heading in READ.items():
        lines = [
            [name, *(said(study.at_fixed(name, "CIDEr", share * start, metric)) for share in SHARES)]
            for name, row in study.file.rows.items()
            if row.curve
        ]
        table = markdown_table(heads, lines)
        yield (
            f"## {heading} at fixed CIDEr (test, greedy, last step)\n\n{table}\n\n{text} *unreached* where a seed's curve "
            "does not enclose the value."
        )


def claims(study: Study) -> Iterator[Claim]:
    """The published orderings: own recall at equal CIDEr, in the middle of what the compared curves enclose."""
    for other in ("st_multinomial", "reinforce_joint", "luo2018"):
        yield _above(study, "psst", other)
    for other in ("st_multinomial", "reinforce_joint"):
        yield _above(study, other, "luo2018")
    yield _interior(study)


def _above(study: Study, higher: str, lower: str) -> Claim:
    text = f"{higher} has a higher own R@1 than {lower} at equal CIDEr."
    value = study.common_middle((higher, lower), "CIDEr")
    if value is None:
        return Claim(text, False, "no CIDEr is enclosed by all seeds of both.")
    ours, theirs = (study.at_fixed(row, "CIDEr", value, OWN) for row in (higher, lower))
    holds = ours is not None and theirs is not None and ours.above(theirs)
    return Claim(text, holds, f"{said(ours)} against {said(theirs)} at CIDEr {100 * value:.0f}.")


def _interior(study: Study) -> Claim:
    """First seeds, since the ends have no others; between the two weights that all have, for a curve with more bends."""
    weights = list(study.curve("psst, rho 0"))
    seed = study.as_curve("psst, rho 0", weights).seeds("last")[0]
    text = f"Some rho between 0 and 1 beats both ends (seed {seed}, own R@1 at equal CIDEr)."
    value = study.common_middle(tuple(RHO), "CIDEr", values=weights)
    if value is None:
        return Claim(text, False, "no CIDEr is enclosed by all of them.")
    read = {rho: study.at_fixed(row, "CIDEr", value, OWN, values=weights) for row, rho in RHO.items()}
    first = {rho: found.values[0] for rho, found in read.items() if found is not None}
    holds = max(value for rho, value in first.items() if rho not in ENDS) > max(first[rho] for rho in ENDS)
    evidence = ", ".join(f"rho {rho}: {first[rho]:.1f}" for rho in sorted(first, key=float))
    return Claim(text, holds, f"{evidence} at CIDEr {100 * value:.0f}.")


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
