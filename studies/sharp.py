"""The page on models whose tower tells shapes better: how much of our recipe's ceiling is the captioner's and the reward's."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from truth import BAR, GOAL, behind, over_values, reached, searched_more, worded, wrong

WEIGHED, WHOLE, WORDED = "likelihood over its weights", "sharp truth", "sharp truth+CIDEr"
SEARCH_GOAL = (82.0, 98.0, 99.0)
BY_VERIFIER, BY_SHARP = ", apart, 10 beams", ", apart by the sharp verifier"
TRAINED = {
    "truth, sharp": BY_VERIFIER,
    "truth, both sharp": BY_SHARP,
    WHOLE: BY_SHARP,
    f"{WHOLE}, likelihood 1.2": BY_SHARP,
    WORDED: BY_SHARP,
}
"""Row -> what its name has more where it is searched."""


PARTS = (" without truth", " without likelihood", ", gallery of 100", " by SCST")
"""What the names of rows with one part changed have more than the whole recipe's."""


def claims(study: Study) -> Iterator[Claim]:
    """What was asked of the recipe, on test; and that each part of it brings something."""
    for row, search in TRAINED.items():
        yield reached(study, row, "goal", GOAL)
        yield reached(study, row + search, "goal with search", SEARCH_GOAL)
        yield searched_more(study, row + search, f"xe-sharp{search}", "last")
    yield reached(study, WORDED, "bar", BAR)
    yield worded(study, WORDED, "xe-sharp", "last")
    yield behind(study, WORDED + BY_SHARP, study.shown(), "row", "last")
    whole = study.read(WHOLE, "exact_recall@1", point="last")
    for part in PARTS:
        row = WHOLE + part
        found = study.read(row, "exact_recall@1", point="last")
        yield Claim(
            f"{WHOLE} has a higher exact recall than {row} (last step).",
            whole.above(found),
            f"{whole} against {found}.",
        )


def sections(study: Study) -> Iterator[str]:
    """The last step on val of each weight of the likelihood, and what false captions get wrong."""
    yield over_values(study, WEIGHED, "reward.likelihood", "weight")
    yield over_values(study, f"{WHOLE} over its larger weights", "reward.likelihood", "larger weight")
    yield over_values(study, f"{WORDED} over its weights", "reward.cider_d", "weight")
    starts = ("xe", "xe-sharp", f"xe{BY_VERIFIER}", f"xe-sharp{BY_VERIFIER}", f"xe-sharp{BY_SHARP}")
    trained = (*TRAINED, *(row + search for row, search in TRAINED.items()))
    yield wrong(study, dict.fromkeys(starts, "selected") | dict.fromkeys(trained, "last"))


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
