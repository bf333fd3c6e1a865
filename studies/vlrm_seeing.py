"""The page on VLRM's matcher: what one that sees places and relations changes, and the comparator IC3."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study

START, IC3, VLRM, RS = "blip2", "blip2, IC3", "vlrm", "vlrm_rs"
VERIFIER, LIKELIHOOD = "vlrm by the verifier", "vlrm by the verifier, likelihood"
IN_WORDS = {"exact_recall@1": "exact recall", "truthful": "share of true captions"}


def claims(study: Study) -> Iterator[Claim]:
    """The published order of recall, and what was expected of the verifier; on test, greedy, at the last step."""
    yield _higher(study, IC3, START, "exact_recall@1")
    for row in (VLRM, RS):
        yield _higher(study, row, IC3, "exact_recall@1")
    yield _higher(study, VERIFIER, VLRM, "truthful")
    for key in IN_WORDS:
        yield _higher(study, LIKELIHOOD, VLRM, key)


def _higher(study: Study, row: str, other: str, metric: str) -> Claim:
    """Whether every seed of ``row`` is above every seed of ``other``."""
    ours, theirs = (
        study.read(name, metric, point="selected" if name in (START, IC3) else "last", decoding="greedy")
        for name in (row, other)
    )
    return Claim(
        f"{row} has a higher {IN_WORDS[metric]} than {other} (greedy, last step).",
        ours.above(theirs),
        f"{ours} against {theirs}.",
    )


if __name__ == "__main__":
    run(__file__, claims=claims)
