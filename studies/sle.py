"""The page on SLE: the rows of the paper's Table 4, for a GPT-2 captioner, an LSTM, and two LSTMs with attention."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim, Seeds
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import StudyFile

NAMES = ("xe", "sll", "sll_me", "sle")
KINDS = {"lstm ": "fc_lstm", "att2in2 ": "att2in2", "updown ": "updown"}
"""Beginning of a row's name -> its recurrent captioner; the rows without one are of GPT-2."""


def prepare(file: StudyFile, size: str, build: bool) -> StudyFile:
    """Give each recurrent captioner its features, which are computed once and kept in the cache."""
    from tellapart.world.lstm import POOLS, features_folder, world_features
    from tellapart.world.stages import resolve, stage_folder

    for prefix, kind in KINDS.items():
        rows = {name for name in file.rows if name.startswith(prefix)}
        if rows and build:
            world_features(resolve("world/backbone", size=size), size, POOLS[kind])
        folder = features_folder(stage_folder("world/backbone", size, 0), size, POOLS[kind])
        file = file.having(rows, {"data.features": str(folder)})
    return file


def claims(study: Study) -> Iterator[Claim]:
    """The published orderings: at the selected checkpoint, and at the last step, which is the same for all."""
    for prefix in ("", *KINDS):
        for point in ("selected", "last"):
            yield from _of_speaker(study, prefix, point)
    yield from _with_more_entropy(study)


def _with_more_entropy(study: Study) -> Iterator[Claim]:
    """Against the larger entropy coefficient, which val does not choose."""
    other = "sll_me at 1e-4, 0.1"
    cider, distinct, alike = (
        {name: study.read(name, key, point="last", decoding=decoding, factor=100) for name in ("sle", other)}
        for key, decoding in (("CIDEr", "beam 5"), ("rs5_Div-2", "greedy"), ("rs5_mBLEU-4", "greedy"))
    )
    yield Claim(
        f"sle has a higher CIDEr than {other} with beam 5 (last step).",
        cider["sle"].above(cider[other]),
        _said(cider, "sle", other),
    )
    yield _more_diverse(distinct, alike, "", other, "(last step)")


def _of_speaker(study: Study, prefix: str, point: str) -> Iterator[Claim]:
    def read(key: str, decoding: str) -> dict[str, Seeds]:
        points = {name: "selected" if name == "xe" else point for name in NAMES}
        return {
            name: study.read(prefix + name, key, point=points[name], decoding=decoding, factor=100) for name in NAMES
        }

    where = f"({point}{' step' if point == 'last' else ' checkpoint'})"
    cider, distinct, alike = read("CIDEr", "beam 5"), read("rs5_Div-2", "greedy"), read("rs5_mBLEU-4", "greedy")
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
        yield _more_diverse(distinct, alike, prefix, other, where)
    yield Claim(
        f"Samples of {prefix}xe are the most diverse {where}.",
        all(distinct["xe"].above(distinct[name]) for name in NAMES[1:]),
        _said(distinct, *NAMES),
    )


def _more_diverse(distinct: dict[str, Seeds], alike: dict[str, Seeds], prefix: str, other: str, where: str) -> Claim:
    return Claim(
        f"Samples of {prefix}sle are more diverse than those of {prefix}{other}, by Div-2 and by mBLEU-4 {where}.",
        distinct["sle"].above(distinct[other]) and alike[other].above(alike["sle"]),
        f"Div-2 {_said(distinct, 'sle', other)} mBLEU-4 {_said(alike, 'sle', other)}",
    )


def _said(values: dict[str, Seeds], *names: str) -> str:
    return ", ".join(f"{name} {values[name]}" for name in names) + "."


if __name__ == "__main__":
    run(__file__, claims=claims, prepare=prepare)
