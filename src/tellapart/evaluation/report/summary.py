"""Top of the page: one sentence, the deciding metrics, and look-alikes that got the same caption before."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.evaluation.columns import Column, describe
from tellapart.evaluation.report.gallery import new_words, scores_of
from tellapart.evaluation.report.pictures import picture_of
from tellapart.evaluation.report.runs import RunView

TRUE = ("truthful", "CHAIRs", "ITM_rejected_objects")
WORDING = ("CIDEr", "Bleu_4", "perplexity")
PAIRS = 3
"""Pairs of look-alikes shown."""


def deciding(runs: Sequence[RunView]) -> list[Column]:
    """At most four metrics: telling apart, truth, wording, length; of each the first that every run has."""
    shared = set.intersection(*(set(run.result.metrics) for run in runs))
    listeners = [f"{name}_R@1" for name in reversed(runs[0].result.protocol.listeners)]
    found = []
    for names in (("exact_recall@1", *listeners, "distinct_captions"), TRUE, WORDING, ("mean_length",)):
        found += [name for name in names if name in shared][:1]
    return [describe(name) for name in found]


def best_of(runs: Sequence[RunView]) -> int | None:
    """The row of the captioner that tells most images apart without a lasting warning; if all have one, of all.

    Given captions (human ones, a file) and the first row, to which others are compared, do not take part. None where no one is
    left or telling apart was not measured.
    """
    columns = deciding(runs)
    rows = [row for row, run in enumerate(runs) if row and run.result.protocol.decoding is not None]
    if not rows or not columns or columns[0].better < 1:
        return None
    clean = [row for row in rows if not any(alarm.lasting for alarm in runs[row].alarms)]
    values = {row: runs[row].result.metrics[columns[0].key] for row in clean or rows}
    known = {row: value for row, value in values.items() if math.isfinite(value)}
    return max(known, key=lambda row: known[row]) if known else None


def verdict(runs: Sequence[RunView]) -> str:
    """The result in one or two sentences: the best captioner against the first in each deciding metric, and who has warnings."""
    columns = deciding(runs)
    best = best_of(runs)
    first = runs[0]
    if best is None:
        told = ", ".join(f"{column.label} {column.text(first.result.metrics[column.key])}" for column in columns)
        return f"{first.name}: {told}." if told else ""
    run = runs[best]
    now = [f"{column.label} {column.text(run.result.metrics[column.key])}" for column in columns]
    then = [column.text(first.result.metrics[column.key]) for column in columns]
    then[0] = f"{first.name}: {then[0]}"
    figures = ", ".join(f"{one} ({other})" for one, other in zip(now, then, strict=True))
    if not gains(runs, best):
        return f"No captioner tells more images apart than {first.name}; best of the others {run.name}: {figures}.{_warned(runs)}"
    return f"{run.name} tells images apart best: {figures}.{_warned(runs)}"


def gains(runs: Sequence[RunView], row: int) -> bool:
    """Whether a run tells more images apart than the first, by the figures as they are printed."""
    column = deciding(runs)[0]
    before, now = (run.result.metrics[column.key] for run in (runs[0], runs[row]))
    return not math.isfinite(before) or (now > before and column.text(now) != column.text(before))


def _warned(runs: Sequence[RunView]) -> str:
    """Whose logs have warnings that last to the end, and how many."""
    lasting = {run.name: sum(alarm.lasting for alarm in run.alarms) for run in runs}
    named = "; ".join(f"{name} ({count})" for name, count in lasting.items() if count)
    return f" Warnings that last to the end: {named}." if named else ""


@dataclass(frozen=True)
class Side:
    """One image of a pair, with the later caption in pieces: text and whether its words are new."""

    id: str
    source: str
    pixelated: bool
    alt: str
    pieces: list[tuple[str, bool]]


@dataclass(frozen=True)
class Pair:
    """Two images that one caption fitted.

    Args:
        before: that caption, by the first run.
        sides: the images, with what the best run says.
    """

    before: str
    sides: tuple[Side, Side]


def pairs(runs: Sequence[RunView], dataset: CaptionDataset | None) -> list[Pair]:
    """Images that the first run gave the same caption and the best run different ones.

    The later captions have no known fault and are found first by the judge. Shortest captions come first, each caption of the
    first run once. Empty without pictures or without such images.
    """
    best = best_of(runs)
    if dataset is None or best is None or not gains(runs, best):
        return []
    shown: list[Pair] = []
    for before, one, other in _candidates(runs, best):
        if len(shown) == PAIRS:
            break
        if any(pair.before == before for pair in shown):
            continue
        sides = [_side(runs[best], dataset, before, image) for image in (one, other)]
        if sides[0] is not None and sides[1] is not None:
            shown.append(Pair(before, (sides[0], sides[1])))
    return shown


def _candidates(runs: Sequence[RunView], best: int) -> list[tuple[str, str, str]]:
    """The first run's caption and two images, the shortest captions of the best run first."""
    later = runs[best].result.captions
    faults = scores_of(runs[best], ()).faults
    alike = defaultdict(list)
    for image, caption in runs[0].result.captions.items():
        if caption.strip() and not faults[image] and later[image].strip().lower() != caption.strip().lower():
            alike[caption.strip()].append(image)
    found = [
        (len(later[one].split()) + len(later[other].split()), before, one, other)
        for before, images in alike.items()
        for one, other in combinations(sorted(images, key=lambda image: (len(later[image].split()), image))[:6], 2)
        if later[one].strip().lower() != later[other].strip().lower()
    ]
    return [(before, one, other) for _, before, one, other in sorted(found)]


def _side(run: RunView, dataset: CaptionDataset, before: str, image: str) -> Side | None:
    """One image, or None where its picture cannot be read."""
    if image not in dataset.position:
        return None
    try:
        source, pixelated = picture_of(dataset[dataset.position[image]].image)
    except (UsageError, OSError):
        return None
    caption = run.result.captions[image]
    return Side(image, source, pixelated, f"Image {image}: {caption}", new_words(caption, before))
