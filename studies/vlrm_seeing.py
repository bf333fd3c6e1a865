"""The page on VLRM's matcher: what one that sees places and relations changes, and the comparator IC3."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from truth import higher

START, IC3, VLRM, RS = "blip2", "blip2, IC3", "vlrm", "vlrm_rs"
VERIFIER, LIKELIHOOD = "vlrm by the verifier", "vlrm by the verifier, likelihood"


def claims(study: Study) -> Iterator[Claim]:
    """The published order of recall, and what was expected of the verifier; on test, greedy, at the last step."""
    yield higher(study, IC3, START, "exact_recall@1")
    for row in (VLRM, RS):
        yield higher(study, row, IC3, "exact_recall@1")
    yield higher(study, VERIFIER, VLRM, "truthful")
    for key in ("exact_recall@1", "truthful"):
        yield higher(study, LIKELIHOOD, VLRM, key)


if __name__ == "__main__":
    run(__file__, claims=claims)
