"""The first page of results: teacher forcing, self-critical training and DiCO on the world."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study

HACKING = ("scst-CLIP (lr 0.001)", "scst-CLIP (lr 0.0003)")


def claims(study: Study) -> Iterator[Claim]:
    """Every expectation of the page, on test with greedy decoding."""
    for row in HACKING:
        yield _collapse(study, row)
    yield from _dico(study)
    yield from _cider(study)


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
    rows = [name for name in study.measured if name not in HACKING]
    for key, what in (("CIDEr", "highest CIDEr"), ("Self-BLEU", "lowest diversity (highest Self-BLEU)")):
        found = {row: study.read(row, key) for row in rows}
        yield Claim(
            f"{ours} has the {what}.",
            all(found[ours].above(value) for row, value in found.items() if row != ours),
            "; ".join(f"{row} {value}" for row, value in found.items()) + ".",
        )


if __name__ == "__main__":
    run(__file__, claims=claims)
