"""The page on PSST: curves of discriminability against naturalness, one per method, and the sweep of rho."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim, markdown_table, said, scale_of
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study

RHO = {f"psst, rho {rho}": rho for rho in ("0", "0.5", "0.75", "1")} | {"psst": "0.25"}
ENDS = ("0", "1")
OWN = "own_listener_R@1"
WORDING = {"Bleu_4": "BLEU-4", "METEOR": "METEOR", "ROUGE_L": "ROUGE-L"}
READ = {OWN: "own R@1", "listener_R@1": "listener R@1", "exact_recall@1": "exact_recall@1"}
SHOWN = {"CIDEr": "CIDEr", OWN: READ[OWN]}
CIDER = (0.9, 1.0, 1.1, 1.2)
"""CIDEr that curves are read at, as a share of the start captioner's."""

RECALL = (1.1, 1.3, 1.5, 1.7)
"""Own R@1 that curves are read at, as a share of the start captioner's listener R@1: its listener has not learned yet."""


def sections(study: Study) -> Iterator[str]:
    """What each curve reads at fixed CIDEr, and at fixed own recall, at the last step."""
    cider = study.read("xe", "CIDEr", factor=1).mean
    for metric, heading in (READ | WORDING).items():
        yield _at_fixed(study, ("CIDEr", "CIDEr", 100), [share * cider for share in CIDER], metric, heading)
    recall = study.read("xe", "listener_R@1", factor=1).mean
    for metric, heading in ({"CIDEr": "CIDEr"} | WORDING | {"truthful": "truthful"}).items():
        yield _at_fixed(study, (OWN, READ[OWN], 1), [share * recall for share in RECALL], metric, heading)


def _at_fixed(study: Study, fixed: tuple[str, str, float], values: list[float], metric: str, heading: str) -> str:
    """A table of one metric: a line per curve, a column per value of the fixed one (its key, name and factor in print)."""
    key, name, factor = fixed
    lines = [
        [row, *(said(study.at_fixed(row, key, value, metric)) for value in values)]
        for row, description in study.file.rows.items()
        if description.curve
    ]
    table = markdown_table(["method", *(f"{name} {factor * value:.0f}" for value in values)], lines)
    return (
        f"## {heading} at fixed {name} (test, greedy, last step)\n\n{table}\n\nEach seed is read on its own curve, on a line "
        "between neighbouring weights; *unreached* where a seed's curve does not enclose the value."
    )


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
