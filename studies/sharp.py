"""The page on models whose tower tells shapes better: how much of our recipe's ceiling is the captioner's and the reward's."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from truth import BAR, GOAL, behind, higher, over_values, reached, searched_more, worded, wrong

WEIGHED, WHOLE, WORDED = "likelihood over its weights", "sharp truth", "sharp truth+CIDEr"
NEARER = f"{WHOLE}, CIDEr-D 0.4"
SEARCH_GOAL = (82.0, 98.0, 99.0)
LOOKALIKES = " among look-alikes"
BY_VERIFIER, BY_SHARP = ", apart, 10 beams", ", apart by the sharp verifier"
TRAINED = {
    "truth, sharp": BY_VERIFIER,
    "truth, both sharp": BY_SHARP,
    WHOLE: BY_SHARP,
    f"{WHOLE}, likelihood 1.2": BY_SHARP,
    WORDED: BY_SHARP,
    NEARER: BY_SHARP,
    f"{WHOLE}{LOOKALIKES}": BY_SHARP,
}
"""Row -> what its name has more where it is searched."""


EXACT = "exact_recall@1"
ORACLE = "sharp oracle"
WITHOUT_TRUTH, WITHOUT_LIKELIHOOD, SMALL_GALLERY = " without truth", " without likelihood", ", gallery of 100"
SCST, OVER_BEAMS = " by SCST", " by SCST over beams"
FAST_BEAMS = f"{OVER_BEAMS}, rate 1e-4"
PARTS = {
    WHOLE: dict.fromkeys((WITHOUT_TRUTH, WITHOUT_LIKELIHOOD, SMALL_GALLERY, SCST, OVER_BEAMS, FAST_BEAMS), EXACT),
    WORDED: {WITHOUT_TRUTH: "truthful", WITHOUT_LIKELIHOOD: EXACT, SMALL_GALLERY: EXACT},
}
"""Recipe -> what the names of rows with one part changed have more -> the metric that the part is for."""


def claims(study: Study) -> Iterator[Claim]:
    """What was asked of the recipe, on test; and that each part of it brings something."""
    for row, search in TRAINED.items():
        yield reached(study, row, "goal", GOAL)
        yield reached(study, row + search, "goal with search", SEARCH_GOAL)
        yield searched_more(study, row + search, f"xe-sharp{search}", "last")
    for row in (WORDED, NEARER):
        yield reached(study, row, "bar", BAR)
        yield worded(study, row, "xe-sharp", "last")
        yield behind(study, row + BY_SHARP, study.shown(), "row", "last")
    yield higher(study, ORACLE, WHOLE, EXACT)
    yield higher(study, f"{WHOLE}{LOOKALIKES}", WHOLE, EXACT)
    yield higher(study, WORDED, WHOLE, "CIDEr")
    for row, parts in PARTS.items():
        yield from (higher(study, row, row + part, metric) for part, metric in parts.items())


def sections(study: Study) -> Iterator[str]:
    """The last step on val of each weight of the likelihood, and what false captions get wrong."""
    yield over_values(study, WEIGHED, "reward.likelihood", "weight")
    yield over_values(study, f"{WHOLE} over its larger weights", "reward.likelihood", "larger weight")
    yield over_values(study, f"{WORDED} over its weights", "reward.cider_d", "weight")
    yield over_values(study, f"{WORDED} over its smaller weights", "reward.cider_d", "smaller weight")
    yield over_values(study, f"{WHOLE}{LOOKALIKES} over its weights", "reward.lookalikes", "weight")
    for row in (WHOLE, WORDED):
        yield over_values(study, f"{row} over its other rates", "training.learning_rate", "other rate")
    for row in (ORACLE, f"{WHOLE}{SCST}", f"{WHOLE}{OVER_BEAMS}"):
        yield over_values(study, row, "training.learning_rate", "rate")
    starts = ("xe", "xe-sharp", f"xe{BY_VERIFIER}", f"xe-sharp{BY_VERIFIER}", f"xe-sharp{BY_SHARP}")
    trained = (*TRAINED, *(row + search for row, search in TRAINED.items()))
    yield wrong(study, dict.fromkeys(starts, "selected") | dict.fromkeys((*trained, ORACLE), "last"))


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
