"""The page on a start captioner whose tower tells shapes better: how much of our own recipe's ceiling is the captioner's."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from truth import reached, searched_more, wrong

GOAL, SEARCH_GOAL = (75.0, 97.0, 99.7), (82.0, 98.0, 99.0)
STARTS, TRAINED = ("xe", "xe-sharp"), ("truth", "truth, sharp")
APART = ", apart, 10 beams"


def claims(study: Study) -> Iterator[Claim]:
    """What was asked of the recipe, from both starts, on test."""
    for start, row in zip(STARTS, TRAINED, strict=True):
        yield reached(study, row, "goal", GOAL)
        yield reached(study, row + APART, "goal with search", SEARCH_GOAL)
        yield searched_more(study, row + APART, start + APART, "last")


def sections(study: Study) -> Iterator[str]:
    """What false captions get wrong."""
    rows = dict.fromkeys(STARTS, "selected") | dict.fromkeys(TRAINED, "last")
    rows |= dict.fromkeys((start + APART for start in STARTS), "selected")
    yield wrong(study, rows | dict.fromkeys((row + APART for row in TRAINED), "last"))


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
