"""The page on our own recipe: captions that tell images apart, are true, and stay near people's wording."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study

TRUTH, WORDED = "truth", "truth+CIDEr"
SEARCH, SEARCHED = "xe, apart, 10 beams", "truth, apart, 10 beams"
THREE = ("exact_recall@1", "truthful", "CIDEr")


def claims(study: Study) -> Iterator[Claim]:
    """What was asked of the recipe, on test."""
    yield _reached(study, "bar", (64.0, 93.0, 99.0))
    yield _reached(study, "goal", (75.0, 97.0, 99.7))
    yield _searched(study)
    yield _worded(study)
    for row in (TRUTH, WORDED):
        yield _behind(study, row)


def _reached(study: Study, what: str, least: tuple[float, float, float]) -> Claim:
    names = ("exact_recall@1", "truthful", "grammatical")
    found = [study.read(TRUTH, name, point="last") for name in names]
    asked = ", ".join(f"{name} {value:g}" for name, value in zip(names, least, strict=True))
    return Claim(
        f"{TRUTH} reaches the {what} in every seed at its last step: {asked}.",
        all(min(one.values) >= value for one, value in zip(found, least, strict=True)),
        "; ".join(f"{name} {one}, lowest {min(one.values):.1f}" for name, one in zip(names, found, strict=True)) + ".",
    )


def _searched(study: Study) -> Claim:
    ours, theirs = (study.read(row, "exact_recall@1") for row in (SEARCHED, SEARCH))
    true, theirs_true = (study.read(row, "truthful") for row in (SEARCHED, SEARCH))
    return Claim(
        f"{SEARCHED} tells more apart than {SEARCH} by more than the spread of seeds, and is as true.",
        ours.above(theirs) and true.mean >= theirs_true.mean,
        f"exact_recall@1 {ours} against {theirs}, truthful {true} against {theirs_true}.",
    )


def _worded(study: Study) -> Claim:
    exact, cider, start = study.read(WORDED, THREE[0]), study.read(WORDED, THREE[2]), study.read("xe", THREE[2])
    return Claim(
        f"{WORDED} has exact_recall@1 50 at xe's CIDEr in every seed.",
        min(exact.values) >= 50 and all(a >= b for a, b in zip(cider.values, start.values, strict=True)),
        f"exact_recall@1 {exact}, CIDEr {cider} against {start}.",
    )


def _behind(study: Study, row: str) -> Claim:
    """By means over seeds, among greedy rows."""
    ours = {key: study.read(row, key).mean for key in THREE}
    ahead = {
        other: [key for key in THREE if study.read(other, key).mean > ours[key]]
        for other in study.shown()
        if other != row and "beams" not in other
    }
    twice = {other: keys for other, keys in ahead.items() if len(keys) > 1}
    return Claim(
        f"No greedy row is ahead of {row} in two of {', '.join(THREE)}.",
        not twice,
        "; ".join(f"{other}: {', '.join(keys)}" for other, keys in twice.items()) + "." if twice else "none is.",
    )


if __name__ == "__main__":
    run(__file__, claims=claims)
