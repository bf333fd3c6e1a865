"""The page on models whose tower tells shapes better: how much of our recipe's ceiling is the captioner's and the reward's."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from truth import over_values, reached, searched_more, wrong

WEIGHED = "likelihood over its weights"
GOAL, SEARCH_GOAL = (75.0, 97.0, 99.7), (82.0, 98.0, 99.0)
BY_VERIFIER, BY_SHARP = ", apart, 10 beams", ", apart by the sharp verifier"
TRAINED = {"truth, sharp": BY_VERIFIER, "truth, both sharp": BY_SHARP, "sharp truth": BY_SHARP}
"""Row -> what its name has more where it is searched."""


def claims(study: Study) -> Iterator[Claim]:
    """What was asked of the recipe, on test."""
    for row, search in TRAINED.items():
        yield reached(study, row, "goal", GOAL)
        yield reached(study, row + search, "goal with search", SEARCH_GOAL)
        yield searched_more(study, row + search, f"xe-sharp{search}", "last")


def sections(study: Study) -> Iterator[str]:
    """The last step on val of each weight of the likelihood, and what false captions get wrong."""
    yield over_values(study, WEIGHED, "reward.likelihood", "weight")
    starts = ("xe", "xe-sharp", f"xe{BY_VERIFIER}", f"xe-sharp{BY_VERIFIER}", f"xe-sharp{BY_SHARP}")
    trained = (*TRAINED, *(row + search for row, search in TRAINED.items()))
    yield wrong(study, dict.fromkeys(starts, "selected") | dict.fromkeys(trained, "last"))


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
