"""The page on our own recipe: captions that tell images apart, are true, and stay near people's wording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tellapart.sweep.claims import Claim, Seeds, markdown_table, over_seeds
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from tellapart.sweep.trainings import dataset_of, option
from tellapart.world.faults import without_places
from tellapart.world.grammar import Description, parse
from tellapart.world.scenes import Scene
from tellapart.world.truth import is_true

TRUTH, SEARCHED_RATE, SLOW, WORDED = "truth", "slow truth", "slow truth at 5e-5", "truth+CIDEr"
SEARCH, SEARCHED, SLOW_SEARCHED = "xe, apart, 10 beams", "truth, apart, 10 beams", "slow truth at 5e-5, apart, 10 beams"
THREE = ("exact_recall@1", "truthful", "CIDEr")

BAR, GOAL = (64.0, 93.0, 99.0), (75.0, 97.0, 99.7)
"""Exact recall, truth and grammar that were asked of greedy captions, in percent."""

FAULTS = ("language", "shape", "texture", "place or relation", "other")
"""What makes a caption false: it is outside the language, it is true once its shapes (...) are left out, or neither."""
KNOWN = "known to the verifier"
RATE = "training.learning_rate"

Logprobs = Callable[[Sequence[str], Sequence[str]], torch.Tensor]


def claims(study: Study) -> Iterator[Claim]:
    """What was asked of the recipe, on test."""
    for row, searched, point in ((TRUTH, SEARCHED, "selected"), (SLOW, SLOW_SEARCHED, "last")):
        yield reached(study, row, "bar", BAR)
        yield reached(study, row, "goal", GOAL)
        yield searched_more(study, searched, SEARCH, point)
    yield worded(study, WORDED, "xe", "selected")
    greedy = [row for row in study.shown() if "beams" not in row]
    for row in (TRUTH, WORDED):
        yield behind(study, row, greedy, "greedy row", "selected")


def reached(study: Study, row: str, what: str, least: tuple[float, float, float]) -> Claim:
    """Whether a row has at least these exact recall, truth and grammar in every seed."""
    names = ("exact_recall@1", "truthful", "grammatical")
    found = [study.read(row, name, point="last") for name in names]
    asked = ", ".join(f"{name} {value:g}" for name, value in zip(names, least, strict=True))
    return Claim(
        f"{row} reaches the {what} in every seed at its last step: {asked}.",
        all(min(one.values) >= value for one, value in zip(found, least, strict=True)),
        "; ".join(f"{name} {one}, lowest {min(one.values):.1f}" for name, one in zip(names, found, strict=True)) + ".",
    )


def searched_more(study: Study, row: str, search: str, point: str) -> Claim:
    """Whether a trained row with search is ahead of ``search``, the same without training."""
    ours, true = (study.read(row, name, point=point) for name in THREE[:2])
    theirs, theirs_true = (study.read(search, name) for name in THREE[:2])
    return Claim(
        f"{row} tells more apart than {search} by more than the spread of seeds, and is as true{_where(point)}.",
        ours.above(theirs) and true.mean >= theirs_true.mean,
        f"exact_recall@1 {ours} against {theirs}, truthful {true} against {theirs_true}.",
    )


def worded(study: Study, row: str, start: str, point: str) -> Claim:
    """Whether a row has half of its images told apart and keeps the CIDEr of where it began, in every seed."""
    exact, cider = (study.read(row, name, point=point) for name in (THREE[0], THREE[2]))
    kept = study.read(start, THREE[2])
    return Claim(
        f"{row} has exact_recall@1 50 at {start}'s CIDEr in every seed{_where(point)}.",
        min(exact.values) >= 50 and all(a >= b for a, b in zip(cider.values, kept.values, strict=True)),
        f"exact_recall@1 {exact}, CIDEr {cider} against {kept}.",
    )


IN_WORDS = {"exact_recall@1": "exact recall", "truthful": "share of true captions", "CIDEr": "CIDEr"}


def higher(study: Study, row: str, other: str, metric: str) -> Claim:
    """Whether every seed of ``row`` is above every seed of ``other``, greedy, at the last step of what was trained."""
    starts = {name for name in (row, other) if study.file.rows[name].start_of}
    ours, theirs = (study.read(name, metric, point="selected" if name in starts else "last") for name in (row, other))
    text = f"{row} has a higher {IN_WORDS[metric]} than {other} (last step)."
    return Claim(text, ours.above(theirs), f"{ours} against {theirs}.")


def behind(study: Study, row: str, among: Iterable[str], what: str, point: str) -> Claim:
    """Whether none of the rows ``among``, each a ``what``, is ahead in two of three figures, by means over seeds. Start
    captioners have no other point than the selected one."""

    def means(name: str) -> dict[str, float]:
        there = "selected" if study.file.rows[name].start_of else point
        return {key: study.read(name, key, point=there).mean for key in THREE}

    ours = means(row)
    theirs = {other: means(other) for other in among if other != row}
    ahead = {other: [key for key in THREE if found[key] > ours[key]] for other, found in theirs.items()}
    twice = {other: keys for other, keys in ahead.items() if len(keys) > 1}
    return Claim(
        f"No {what} is ahead of {row} in two of {', '.join(THREE)}{_where(point)}.",
        not twice,
        "; ".join(f"{other}: {', '.join(keys)}" for other, keys in twice.items()) + "." if twice else "none is.",
    )


def _where(point: str) -> str:
    return "" if point == "selected" else " (last step)"


def sections(study: Study) -> Iterator[str]:
    """The last step on val of each rate of the slow training, and what false captions get wrong."""
    yield over_values(study, SEARCHED_RATE, RATE, "rate")
    rows = {"xe": "selected", TRUTH: "last", SLOW: "last", SEARCH: "selected", SEARCHED: "last", SLOW_SEARCHED: "last"}
    yield wrong(study, rows)


def over_values(study: Study, row: str, key: str, what: str) -> str:
    """The last step on val of each value of a row's grid.

    Args:
        study: has the trainings.
        row: tried on val.
        key: the option that the grid is of.
        what: the option in words, singular.
    """
    names = ("exact_recall@1", "truthful", "grammatical", "CIDEr")
    lines = []
    for setting in study.grid(row):
        last = [task.on_val("last") for task in study.tried(row, setting)]
        lines.append([f"{setting.overrides[key]:g}", *(str(over_seeds(last, name)) for name in names)])
    seeds = ", ".join(map(str, study.search_seeds))
    table = markdown_table([what, *names], lines)
    return f"## {row.partition(' over its')[0]} over its {what}s (val, greedy, last step, seeds {seeds})\n\n{table}"


def wrong(study: Study, rows: Mapping[str, str]) -> str:
    """A table of what the false captions of rows get wrong, each at ``selected`` or ``last``."""
    said = {
        row: [_captions(study, row, point, place) for place in range(len(study.measured[row]))]
        for row, point in rows.items()
    }
    found = study.noted("false captions", lambda: _false(study, said), said, {"verifier": "world/verifier"})
    lines = [
        [row, *(str(Seeds([one[name] for one in seeds])) for name in ("false", *FAULTS, KNOWN))]
        for row, seeds in found.items()
    ]
    table = markdown_table(["row", "false", *FAULTS, KNOWN], lines)
    return f"""## What false captions get wrong (test, % of all captions)

*shape*, *texture*, *place or relation*: true once these are left out of the caption. *Known to the verifier*: false captions that
`world/verifier` holds more likely false than true. Trained captioners at the last step.

{table}"""


def _captions(study: Study, row: str, point: str, place: int) -> dict[str, str]:
    measured = study.evaluation(study.measured[row][place], point)
    assert measured is not None, "every row has its checkpoints"
    return dict(measured.result().captions)


def _false(study: Study, said: Mapping[str, list[dict[str, str]]]) -> dict[str, list[dict[str, float]]]:
    """Row -> of each seed, percentages of its captions."""
    from tellapart.listeners.late import LateListener
    from tellapart.world import load_scenes
    from tellapart.world.stages import resolve

    recipe = study.measured["xe"][0].recipe
    size = option(recipe, "data.size")
    verifier = LateListener.from_pretrained(resolve("world/verifier", size=size), name="verifier")
    verifier.cache_images(dataset_of(recipe, "test"))
    scenes = load_scenes("test", size=size)
    return {row: [shares(captions, scenes, verifier.logprobs) for captions in seeds] for row, seeds in said.items()}


def shares(captions: Mapping[str, str], scenes: Mapping[str, Scene], logprobs: Logprobs) -> dict[str, float]:
    """Percentages of captions (image id -> caption): ``false``, ``FAULTS``, and ``KNOWN``.

    Args:
        captions: one of each image.
        scenes: of the images.
        logprobs: captions, image ids -> ``[captions, images]`` log-probabilities that they are true.
    """
    believed = logprobs(list(captions.values()), list(captions)).diagonal().exp() > 0.5
    found: Counter[str] = Counter()
    for (image, caption), holds in zip(captions.items(), believed.tolist(), strict=True):
        fault = fault_of(caption, scenes[image])
        if fault is not None:
            found.update([fault, "false"] if holds else [fault, "false", KNOWN])
    return {name: 100.0 * found[name] / len(captions) for name in ("false", *FAULTS, KNOWN)}


def fault_of(caption: str, scene: Scene) -> str | None:
    """The one of ``FAULTS`` that makes a caption false; none if it is true."""
    said = parse(caption)
    if said is None:
        return "language"
    if is_true(said, scene):
        return None
    without = {name: _without(said, **{name: None}) for name in ("shape", "texture")}
    without["place or relation"] = without_places(said)
    return next((name for name, rest in without.items() if is_true(rest, scene)), "other")


def _without(said: Description, **left_out: Any) -> Description:
    return replace(said, phrases=tuple(replace(phrase, **left_out) for phrase in said.phrases))


if __name__ == "__main__":
    run(__file__, claims=claims, sections=sections)
