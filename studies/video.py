"""The page on SLE over clips: the rows of the paper's Table 3, on the moving world."""

from __future__ import annotations

from collections.abc import Iterator

from tellapart.sweep.claims import Claim, Seeds
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import StudyFile

NAMES = ("xe", "sll", "sll_me", "sle")


def prepare(file: StudyFile, size: str, build: bool) -> StudyFile:
    """Give the captioners their features, which are computed once and kept in the cache."""
    from tellapart.world.lstm import features_folder
    from tellapart.world.stages import resolve, stage_folder
    from tellapart.world.video.lstm import video_features

    if build:
        video_features(resolve("world/video-backbone", size=size), size)
    folder = features_folder(stage_folder("world/video-backbone", size, 0), size)
    return file.having(set(file.rows), {"data.features": str(folder)})


def claims(study: Study) -> Iterator[Claim]:
    """The published orderings, at the selected checkpoint and at the last step. The paper's text and table exchange SLL and
    SLL-ME, so nothing is claimed of these two."""
    for point in ("selected", "last"):
        where = f"({point}{' step' if point == 'last' else ' checkpoint'})"
        for key, name in (("CIDEr", "CIDEr"), ("METEOR", "METEOR")):
            found = _read(study, key, "beam 5", point)
            for other in ("sll", "sll_me"):
                yield Claim(
                    f"sle has a higher {name} than {other} with beam 5 {where}.",
                    found["sle"].above(found[other]),
                    _said(found, "sle", other),
                )
        cider = _read(study, "CIDEr", "beam 5", point)
        yield Claim(
            f"xe has the lowest CIDEr with beam 5 {where}.",
            all(cider[name].above(cider["xe"]) for name in NAMES[1:]),
            _said(cider, *NAMES),
        )
        distinct, alike = _read(study, "rs5_Div-2", "greedy", point), _read(study, "rs5_mBLEU-4", "greedy", point)
        for other in ("sll", "sll_me"):
            yield Claim(
                f"Samples of sle are more diverse than those of {other}, by Div-2 and by mBLEU-4 {where}.",
                distinct["sle"].above(distinct[other]) and alike[other].above(alike["sle"]),
                f"Div-2 {_said(distinct, 'sle', other)} mBLEU-4 {_said(alike, 'sle', other)}",
            )


def _read(study: Study, key: str, decoding: str, point: str) -> dict[str, Seeds]:
    points = {name: "selected" if name == "xe" else point for name in NAMES}
    return {name: study.read(name, key, point=points[name], decoding=decoding, factor=100) for name in NAMES}


def _said(values: dict[str, Seeds], *names: str) -> str:
    return ", ".join(f"{name} {values[name]}" for name in names) + "."


if __name__ == "__main__":
    run(__file__, claims=claims, prepare=prepare)
