"""The page on WTF-RL: the seven rows of the paper's table, and what makes its reward stable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.experiments.study_plan import Claim, Columns, Plan, Reader, Seeds
from tellapart.experiments.wtf_rows import CHANGES, WTF_ROWS

if TYPE_CHECKING:
    from tellapart.experiments.study import Study
    from tellapart.experiments.world_run import Setting

RECALLS: Columns = {
    f"{who}_{way}R@{k}": (f"{who} {'I2T' if way else 'T2I'} R@{k}", 1.0)
    for who in ("listener", "judge")
    for way in ("", "i2t_")
    for k in (1, 5, 10)
} | {f"exact_recall@{k}": (f"exact_recall@{k}", 1.0) for k in (1, 5, 10)}

WRITING: Columns = {
    "Bleu_4": ("BLEU-4", 100.0),
    "ROUGE_L": ("ROUGE-L", 100.0),
    "CIDEr": ("CIDEr", 100.0),
    "METEOR": ("METEOR", 100.0),
    "Self-BLEU": ("Self-BLEU", 1.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "hallucinated": ("hallucinated", 1.0),
    "detail": ("detail", 1.0),
    "repetition": ("repetition", 1.0),
    "mean_length": ("words", 1.0),
}

INTRODUCTION = """The seven rows of Table 1 of Chaffin, Kijak & Claveau (2024) on the built-in world, at the paper's settings:
best of 5 beams, temperature 0.01, `combine=half`, alpha 0.94, neighbours 4 and 5, pre-trained MLP discriminator. Two things
differ: 3-grams may repeat in drawn captions (the world's sentences repeat them rightly), and a step has 48 images. The rows
with a comma are no published methods: they change the reward so that it stops destroying the language. How to read it is in
[world-wtf-rl-analysis.md](world-wtf-rl-analysis.md). Made by `make study STUDY=wtf-rl`."""


def claims(study: Study) -> list[Claim]:
    """The published orderings (methods, Table 1), on test with beam 5, which the paper decodes with."""
    reader = Reader(study)
    recall = {row: _metric(reader, row, "listener_R@1") for row in _rows()}
    cider = {row: _metric(reader, row, "CIDEr", 100.0) for row in _rows()}
    i2t = {row: _metric(reader, row, "listener_i2t_R@1") for row in _rows()}
    return [
        _ordered("wtf retrieves better than xe.", recall, "wtf", "xe"),
        _not_lower("wtf keeps xe's CIDEr.", cider, "wtf", "xe"),
        _ordered("rl retrieves far better than wtf (10 points or more).", recall, "rl", "wtf", by=10),
        _ordered("wtf_rl retrieves far better than wtf (10 points or more).", recall, "wtf_rl", "wtf", by=10),
        _ordered("wtf_rl has a higher CIDEr than rl.", cider, "wtf_rl", "rl"),
        _ordered("rl has a higher CIDEr than scst_discriminator.", cider, "rl", "scst_discriminator"),
        _ordered("rl has a higher CIDEr than scst_grammar.", cider, "rl", "scst_grammar"),
        _ordered(
            "Two ways beat one on text-to-image recall (rl over rl_unidirectional).", recall, "rl", "rl_unidirectional"
        ),
        _ordered("... and on image-to-text recall, where the paper finds less.", i2t, "rl", "rl_unidirectional"),
    ]


def _rows() -> tuple[str, ...]:
    return ("xe", *WTF_ROWS)


def _metric(reader: Reader, row: str, key: str, factor: float = 1.0) -> Seeds:
    return reader.metric(row, key, factor=factor, decoding="beam5")


def _ordered(text: str, values: dict[str, Seeds], higher: str, lower: str, *, by: float = 0.0) -> Claim:
    ours, theirs = values[higher], values[lower]
    return Claim(text, ours.above(theirs) and ours.mean - theirs.mean >= by, f"{ours} against {theirs}.")


def _not_lower(text: str, values: dict[str, Seeds], ours: str, theirs: str) -> Claim:
    """Holds unless every seed of the other row lies above."""
    return Claim(text, not values[theirs].above(values[ours]), f"{values[ours]} against {values[theirs]}.")


STABLE = ("wtf, clamped", "wtf_rl, clamped and centred")
"""The changes that keep the language at every rate tried; measured like the rows, at their own best point on val."""


def stable(study: Study) -> dict[str, Setting]:
    """Name of a further row -> its setting."""
    return {name: study.chosen(name) for name in STABLE}


PLAN = Plan(
    page="world-wtf-rl.md",
    title="WTF-RL on the world",
    introduction=INTRODUCTION,
    rows=tuple(WTF_ROWS),
    tables={"retrieval": RECALLS, "writing": WRITING},
    claims=claims,
    further=stable,
    on_val=tuple(CHANGES),
    further_measures=("meteor",),
)
