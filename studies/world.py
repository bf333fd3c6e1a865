"""The first page of results: teacher forcing, self-critical training and DiCO on the world, by blind rewards and by true ones."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study

HACKING = "scst-CLIP (lr 0.0003)"
PLAIN = ("scst-CLIP", "scst-CLIP+KL", "dico")
"""Rows rewarded by CLIP-S of the plain listener."""

TRUTH = ("dico-truth", "dico-truth, 480 steps")
ORACLE = ("dico-oracle", "scst-oracle+KL")
SEARCH = "xe, best of 10 beams"
BAR, GOAL = (60.0, 91.0, 98.5), (68.0, 95.0, 99.5)
"""exact_recall@1, truthful, grammatical of captions that tell images apart and are true."""


def claims(study: Study) -> Iterator[Claim]:
    """Every expectation of the page, on test with greedy decoding."""
    yield _collapse(study, HACKING)
    yield from _dico(study)
    yield from _cider(study)
    yield _hacked(study)
    for row in TRUTH:
        yield from (_reached(study, row, "bar", BAR), _reached(study, row, "goal", GOAL))
    yield from _searched(study)
    yield _ceiling(study)


def _collapse(study: Study, row: str) -> Claim:
    grammatical = study.read(row, "grammatical", point="last")
    recall, start = study.read(row, "listener_R@1", point="last"), study.read("xe", "listener_R@1")
    return Claim(
        f"{row} collapses: at its last step below 10 % grammatical while listener R@1 is far above xe's.",
        max(grammatical.values) < 10 and recall.above(start),
        f"grammatical {grammatical}, listener R@1 {recall} against {start}.",
    )


def _dico(study: Study) -> Iterator[Claim]:
    grammatical = study.read("dico", "grammatical")
    yield Claim(
        "dico at its selected checkpoint is above 90 % grammatical.", min(grammatical.values) > 90, f"{grammatical}."
    )
    recall, start = study.read("dico", "listener_R@1"), study.read("xe", "listener_R@1")
    yield Claim(
        "dico at its selected checkpoint has a listener R@1 at least 25 points over xe's.",
        recall.mean - start.mean >= 25 and recall.above(start),
        f"{recall} against {start}.",
    )
    exact, exact_start = study.read("dico", "exact_recall@1"), study.read("xe", "exact_recall@1")
    low, high = study.interval("dico", "exact_recall@1", over="xe")
    yield Claim(
        "dico at its selected checkpoint has an exact_recall@1 above xe's.",
        exact.above(exact_start) and low > 0,
        f"{exact} against {exact_start}; gain over images [{low:.1f}, {high:.1f}].",
    )


def _cider(study: Study) -> Iterator[Claim]:
    ours = "scst-CIDEr"
    rows = ["xe", ours, *PLAIN]
    for key, what in (("CIDEr", "highest CIDEr"), ("Self-BLEU", "lowest diversity (highest Self-BLEU)")):
        found = {row: study.read(row, key) for row in rows}
        yield Claim(
            f"{ours} has the {what}.",
            all(found[ours].above(value) for row, value in found.items() if row != ours),
            "; ".join(f"{row} {value}" for row, value in found.items()) + ".",
        )


def _hacked(study: Study) -> Claim:
    start = study.read("xe", "truthful")
    found = {
        row: (study.read(row, "truthful", point="last"), study.read(row, "judge_R@1", point="last")) for row in PLAIN
    }
    judged = study.read("xe", "judge_R@1")
    return Claim(
        "CLIP-S of the plain listener makes captions false: at the last step 10 points or more below xe's truthful, at a "
        "higher judge R@1.",
        all(
            start.mean - true.mean >= 10 and start.above(true) and recall.above(judged)
            for true, recall in found.values()
        ),
        f"xe truthful {start}, judge R@1 {judged}; "
        + "; ".join(f"{row} {true}, {recall}" for row, (true, recall) in found.items())
        + ".",
    )


def _reached(study: Study, row: str, what: str, least: tuple[float, float, float]) -> Claim:
    names = ("exact_recall@1", "truthful", "grammatical")
    found = [study.read(row, name, point="last") for name in names]
    asked = ", ".join(f"{name} {value:g}" for name, value in zip(names, least, strict=True))
    values = [[f"{value:.1f}" for value in one.values] for one in found]
    return Claim(
        f"{row} reaches the {what} in every seed at its last step: {asked}.",
        all(min(one.values) >= value for one, value in zip(found, least, strict=True)),
        "; ".join(f"{name} {', '.join(one)}" for name, one in zip(names, values, strict=True)) + ".",
    )


def _searched(study: Study) -> Iterator[Claim]:
    exact, start = study.read(SEARCH, "exact_recall@1"), study.read("xe", "exact_recall@1")
    true, start_true = study.read(SEARCH, "truthful"), study.read("xe", "truthful")
    yield Claim(
        "Search without training: the best of xe's 10 beams by truth plus likelihood tells more apart than xe's greedy captions, "
        "and is as true.",
        exact.above(start) and true.mean >= start_true.mean,
        f"exact_recall@1 {exact} against {start}, truthful {true} against {start_true}.",
    )
    ours = study.read(TRUTH[0], "exact_recall@1", point="last")
    yield Claim(
        f"{TRUTH[0]} puts that into one greedy pass: its exact_recall@1 is above that of the search.",
        ours.above(exact),
        f"{ours} against {exact}.",
    )


def _ceiling(study: Study) -> Claim:
    found = {row: (study.read(row, "truthful"), study.read(row, "exact_recall@1")) for row in ORACLE}
    return Claim(
        "Rewarded by the exact truth, captions are true in 90 % or more, and tell more apart than xe's.",
        all(
            min(true.values) >= 90 and exact.above(study.read("xe", "exact_recall@1")) for true, exact in found.values()
        ),
        "; ".join(f"{row} truthful {true}, exact_recall@1 {exact}" for row, (true, exact) in found.items()) + ".",
    )


if __name__ == "__main__":
    run(__file__, claims=claims)
