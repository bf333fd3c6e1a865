"""The page on SLE: the rows of the paper's Table 4, for an LSTM and for a GPT-2 captioner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tellapart.experiments.sle_rows import SLE_ROWS, SPEAKERS
from tellapart.experiments.study_plan import Claim, Columns, Plan, Reader, Seeds
from tellapart.experiments.world_rows import STARTS

if TYPE_CHECKING:
    from tellapart.experiments.study import Study

ONE: Columns = {
    "CIDEr": ("CIDEr", 100.0),
    "METEOR": ("METEOR", 100.0),
    "Bleu_4": ("BLEU-4", 100.0),
    "listener_R@1": ("listener R@1", 1.0),
    "judge_R@1": ("judge R@1", 1.0),
    "exact_recall@1": ("exact_recall@1", 1.0),
    "grammatical": ("grammatical", 1.0),
    "truthful": ("truthful", 1.0),
    "Self-BLEU": ("Self-BLEU", 1.0),
    "distinct_captions": ("distinct", 1.0),
    "mean_length": ("words", 1.0),
}

SETS: Columns = {
    f"{way}5_{key}": (f"{way} {heading}", 100.0)
    for way in ("rs", "bs")
    for key, heading in {"CIDEr": "CIDEr", "Div-1": "Div-1", "Div-2": "Div-2", "mBLEU-4": "mBLEU-4"}.items()
}

INTRODUCTION = """Table 4 of Chen & Jin (CVPR 2020) on the built-in world: teacher forcing (`xe`), self-critical training on
CIDEr with five samples (`sll`), with maximum entropy (`sll_me`), and with exploration (`sle`), for the world's GPT-2
captioner and for an LSTM over the mean of its backbone's features (`lstm ...`). `rs` are five captions an image drawn at
random, `bs` the five best beams; their CIDEr is the mean of the five; Div-n and mBLEU-4 are printed times 100, and a high
mBLEU-4 says that the five are alike. How to read it is in [world-sle-analysis.md](world-sle-analysis.md). Made by `make study
STUDY=sle`."""


def claims(study: Study) -> list[Claim]:
    """The published orderings, at the selected checkpoint."""
    reader = Reader(study)
    return [claim for prefix in SPEAKERS for claim in _of_speaker(reader, prefix)]


def _of_speaker(reader: Reader, prefix: str) -> Iterator[Claim]:
    names = ("xe", "sll", "sll_me", "sle")
    cider = {name: reader.metric(prefix + name, "CIDEr", factor=100, decoding="beam5") for name in names}
    yield Claim(
        f"{prefix}sle has at least the CIDEr of {prefix}sll (beam 5).",
        not cider["sll"].above(cider["sle"]),
        _said(cider, "sle", "sll"),
    )
    yield Claim(
        f"{prefix}xe has the lowest CIDEr (beam 5).",
        all(cider[name].above(cider["xe"]) for name in names[1:]),
        _said(cider, *names),
    )
    distinct = {name: reader.metric(prefix + name, "rs5_Div-2", factor=100, decoding="sets") for name in names}
    alike = {name: reader.metric(prefix + name, "rs5_mBLEU-4", factor=100, decoding="sets") for name in names}
    for other in ("sll", "sll_me"):
        yield Claim(
            f"Samples of {prefix}sle are more diverse than those of {prefix}{other}, by Div-2 and by mBLEU-4.",
            distinct["sle"].above(distinct[other]) and alike[other].above(alike["sle"]),
            f"Div-2 {_said(distinct, 'sle', other)} mBLEU-4 {_said(alike, 'sle', other)}",
        )
    yield Claim(
        f"Samples of {prefix}xe are the most diverse.",
        all(distinct["xe"].above(distinct[name]) for name in names[1:]),
        _said(distinct, *names),
    )


def _said(values: dict[str, Seeds], *names: str) -> str:
    return ", ".join(f"{name} {values[name]}" for name in names) + "."


PLAN = Plan(
    page="world-sle.md",
    title="SLE on the world",
    introduction=INTRODUCTION,
    rows=tuple(SLE_ROWS),
    tables={"": ONE},
    claims=claims,
    starts=tuple(STARTS),
    further_measures=("meteor", "sets"),
    sets=SETS,
)
