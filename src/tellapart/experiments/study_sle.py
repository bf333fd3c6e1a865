"""The page on SLE: the rows of the paper's Table 4, for an LSTM and for a GPT-2 captioner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tellapart.experiments.sle_rows import SLE_ROWS, SPEAKERS
from tellapart.experiments.study_plan import Claim, Columns, Plan, Reader, Seeds

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

NAMES = ("xe", "sll", "sll_me", "sle")
POINTS = ("selected", "last")

INTRODUCTION = """Table 4 of Chen & Jin (CVPR 2020) on the built-in world: teacher forcing (`xe`), self-critical training on
CIDEr with five samples (`sll`), with maximum entropy (`sll_me`), and with exploration (`sle`), for the world's GPT-2
captioner and for an LSTM over the mean of its backbone's features (`lstm ...`). `rs` are five captions an image drawn at
random, `bs` the five best beams; their CIDEr is the mean of the five; Div-n and mBLEU-4 are printed times 100, and a high
mBLEU-4 says that the five are alike. How to read it is in [world-sle-analysis.md](world-sle-analysis.md). Made by `make study
STUDY=sle`."""


def claims(study: Study) -> list[Claim]:
    """The published orderings: at the selected checkpoint, and at the last step, which is the same for all."""
    reader = Reader(study)
    return [claim for prefix in SPEAKERS for point in POINTS for claim in _of_speaker(reader, prefix, point)]


def _of_speaker(reader: Reader, prefix: str, point: str) -> Iterator[Claim]:
    def read(key: str, decoding: str) -> dict[str, Seeds]:
        points = {name: "selected" if name == "xe" else point for name in NAMES}
        return {
            name: reader.metric(prefix + name, key, point=points[name], factor=100, decoding=decoding) for name in NAMES
        }

    where = f"({point}{' step' if point == 'last' else ' checkpoint'})"
    cider, distinct, alike = read("CIDEr", "beam5"), read("rs5_Div-2", "sets"), read("rs5_mBLEU-4", "sets")
    yield Claim(
        f"{prefix}sle has at least the mean CIDEr of {prefix}sll with beam 5 {where}.",
        cider["sle"].mean >= cider["sll"].mean,
        _said(cider, "sle", "sll"),
    )
    yield Claim(
        f"{prefix}xe has the lowest CIDEr with beam 5 {where}.",
        all(cider[name].above(cider["xe"]) for name in NAMES[1:]),
        _said(cider, *NAMES),
    )
    for other in ("sll", "sll_me"):
        yield Claim(
            f"Samples of {prefix}sle are more diverse than those of {prefix}{other}, by Div-2 and by mBLEU-4 {where}.",
            distinct["sle"].above(distinct[other]) and alike[other].above(alike["sle"]),
            f"Div-2 {_said(distinct, 'sle', other)} mBLEU-4 {_said(alike, 'sle', other)}",
        )
    yield Claim(
        f"Samples of {prefix}xe are the most diverse {where}.",
        all(distinct["xe"].above(distinct[name]) for name in NAMES[1:]),
        _said(distinct, *NAMES),
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
    starts=("xe", "lstm xe"),
    further_measures=("meteor", "sets"),
    sets=SETS,
)
