"""The first page of results: teacher forcing, self-critical training and DiCO on the world."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tellapart.experiments.study_plan import Claim, Plan, Reader
from tellapart.experiments.world_rows import ROWS

if TYPE_CHECKING:
    from tellapart.experiments.study import Study
    from tellapart.experiments.world_run import Setting

COLLAPSE = "scst-CLIP"
"""The row that is also read at the last step of the grid's two largest rates, where it hacks its reward."""

COLUMNS = {
    "CIDEr": ("CIDEr", 100.0),
    "Bleu_4": ("BLEU-4", 100.0),
    "listener_R@1": ("listener R@1", 1.0),
    "listener_i2t_R@1": ("i2t R@1", 1.0),
    "judge_R@1": ("judge R@1", 1.0),
    "exact_recall@1": ("exact_recall@1", 1.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "hallucinated": ("hallucinated", 1.0),
    "detail": ("detail", 1.0),
    "Self-BLEU": ("Self-BLEU", 1.0),
    "distinct_captions": ("distinct", 1.0),
    "repetition": ("repetition", 1.0),
    "mean_length": ("words", 1.0),
}


def collapses(study: Study) -> dict[str, Setting]:
    """Name of a table row -> the row that hacks its reward, at the grid's two largest rates."""
    rates = sorted(study.learning_rates)[-2:]
    return {
        f"{COLLAPSE} (lr {rate:g})": replace(study.base, row=COLLAPSE, learning_rate=rate, knob=None) for rate in rates
    }


def claims(study: Study) -> list[Claim]:
    """Every expectation of the page, on test with greedy decoding."""
    reader = Reader(study)
    collapsed = [_collapse(reader, name) for name in reversed(collapses(study))]
    return [*collapsed, *_dico(reader), *_cider(study, reader)]


def _collapse(reader: Reader, row: str) -> Claim:
    grammatical = reader.metric(row, "grammatical", point="last")
    recall, start = reader.metric(row, "listener_R@1", point="last"), reader.metric("xe", "listener_R@1")
    return Claim(
        f"{row} collapses: at its last step below 10 % grammatical while listener R@1 is far above xe's.",
        max(grammatical.values) < 10 and recall.above(start),
        f"grammatical {grammatical}, listener R@1 {recall} against {start}.",
    )


def _dico(reader: Reader) -> list[Claim]:
    grammatical = reader.metric("dico", "grammatical")
    recall, start = reader.metric("dico", "listener_R@1"), reader.metric("xe", "listener_R@1")
    exact, exact_start = reader.metric("dico", "exact_recall@1"), reader.metric("xe", "exact_recall@1")
    low, high = reader.interval("dico", "exact_recall@1")
    return [
        Claim(
            "dico at its selected checkpoint is above 90 % grammatical.",
            min(grammatical.values) > 90,
            f"{grammatical}.",
        ),
        Claim(
            "dico at its selected checkpoint has a listener R@1 at least 25 points over xe's.",
            recall.mean - start.mean >= 25 and recall.above(start),
            f"{recall} against {start}.",
        ),
        Claim(
            "dico at its selected checkpoint has an exact_recall@1 above xe's.",
            exact.above(exact_start) and low > 0,
            f"{exact} against {exact_start}; gain over images [{low:.1f}, {high:.1f}].",
        ),
    ]


def _cider(study: Study, reader: Reader) -> list[Claim]:
    rows = ["xe", *study.plan.rows]
    cider = {row: reader.metric(row, "CIDEr", factor=100.0) for row in rows}
    alike = {row: reader.metric(row, "Self-BLEU") for row in rows}
    ours = "scst-CIDEr"
    return [
        Claim(
            "scst-CIDEr has the highest CIDEr.",
            all(cider[ours].above(cider[row]) for row in rows if row != ours),
            "; ".join(f"{row} {value}" for row, value in cider.items()) + ".",
        ),
        Claim(
            "scst-CIDEr has the lowest diversity (highest Self-BLEU).",
            all(alike[ours].above(alike[row]) for row in rows if row != ours),
            "; ".join(f"{row} {value}" for row, value in alike.items()) + ".",
        ),
    ]


PLAN = Plan(
    page="world.md",
    title="Results on the world",
    introduction="""Made by `make study`; how to read it is in [world-analysis.md](world-analysis.md). Five captions are
drawn for each image.""",
    rows=tuple(ROWS),
    tables={"": COLUMNS},
    claims=claims,
    further=collapses,
)
