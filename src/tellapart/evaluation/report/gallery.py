"""Which images the page shows, and what it says of each model's caption."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError, count_of
from tellapart.evaluation.columns import CAPTION_METRICS, Column, describe, listener_metric
from tellapart.evaluation.report.curves import safe_json
from tellapart.evaluation.report.pictures import picture_of
from tellapart.evaluation.report.runs import RunView

# What is known of one caption on its own: its scores, its faults, and how far it is from another model's.

MOST_SCORES = 14
"""Columns of an image's table of scores."""

FAULTS = {
    "grammatical": ("not grammatical", lambda value: value == 0),
    "truthful": ("not true", lambda value: value == 0),
    "hallucinated": ("names what is not there", lambda value: value > 0),
    "CHAIRs": ("names an absent object", lambda value: value > 0),
    "bad_endings": ("bad ending", lambda value: value > 0),
    "unfinished": ("cut", lambda value: value > 0),
    "openers": ("opener", lambda value: value > 0),
}
"""Per-image column -> what is wrong with a caption, and the values at which it is."""

NOT_FOUND = "not found by {}"
EMPTY = "empty"

_TWICE_SAID = ("_R@1", "_R@5", "_R@10", "_MedR", "_sentences", "exact_recall@5", "exact_recall@10")
"""Endings of columns that say what another column or a fault says, too."""

_SENTENCE_BLEU = Column("sentence_Bleu_4", "BLEU-4 of the sentence", 100, 1, 1)


@dataclass(frozen=True)
class Scores:
    """One run's values, by image id.

    Args:
        columns: key of a score -> id -> value on its stored scale, where it is defined.
        faults: id -> what is wrong with the caption.
    """

    columns: dict[str, dict[str, float]]
    faults: dict[str, list[str]]


def score_columns(runs: Sequence[RunView]) -> list[Column]:
    """The per-image scores that any run has and of which it is known which way is better; at most ``MOST_SCORES``."""
    keys = dict.fromkeys(key for run in runs for key in run.result.per_image if _is_score(key))
    found = [_SENTENCE_BLEU if key == _SENTENCE_BLEU.key else describe(key) for key in keys]
    change = measure_of_change(runs)
    found.sort(
        key=lambda column: change is None or column.key != change.key
    )  # never cut off: the gallery opens with it
    return [column for column in found if column.better][:MOST_SCORES]


def _is_score(key: str) -> bool:
    if key.endswith(_TWICE_SAID) or key.startswith("SPICE_") or (key in FAULTS and key != "hallucinated"):
        return False
    return key == _SENTENCE_BLEU.key or key in CAPTION_METRICS or listener_metric(key) is not None


def scores_of(run: RunView, columns: Sequence[Column]) -> Scores:
    """The scores and faults of every caption of a run."""
    result, ids = run.result, list(run.result.captions)
    by_id = {
        column.key: _defined(ids, result.per_image[column.key]) for column in columns if column.key in result.per_image
    }
    faults: dict[str, list[str]] = {i: [] if result.captions[i].strip() else [EMPTY] for i in ids}
    for key, (text, wrong) in FAULTS.items():
        for image_id, value in _defined(ids, result.per_image.get(key, [])).items():
            if wrong(value):
                faults[image_id].append(text)
    for listener in list(result.protocol.listeners)[-1:]:
        for image_id, value in _defined(ids, result.per_image.get(f"{listener}_rank", [])).items():
            if value > 1:
                faults[image_id].append(NOT_FOUND.format(listener))
    return Scores(by_id, faults)


def _defined(ids: Sequence[str], values: Sequence[Any]) -> dict[str, float]:
    pairs = zip(ids, values, strict=False)
    return {i: float(v) for i, v in pairs if isinstance(v, int | float) and math.isfinite(v)}


def level(column: Column, value: float) -> float:
    """A score as it is compared: the higher the better; reciprocal ranks as log ranks, or all but the first would be alike."""
    if column.key.endswith("_MRR"):
        return math.log(max(value, 1e-9))
    return value * column.scale * (column.better or 1)


def rewritten(caption: str, before: str) -> float:
    """Share of the words that differ, 0 to 100: 0 for the same caption."""
    words = (before.lower().split(), caption.lower().split())
    return 100 * (1 - SequenceMatcher(None, *words, autojunk=False).ratio())


def new_words(caption: str, before: str) -> list[tuple[str, bool]]:
    """The caption in pieces, each with whether all its words are new to ``before``; joined by spaces they are the caption's
    words."""
    known = set(before.lower().split())
    pieces: list[tuple[str, bool]] = []
    for word in caption.split():
        new = word.lower() not in known
        if pieces and pieces[-1][1] == new:
            pieces[-1] = (f"{pieces[-1][0]} {word}", new)
        else:
            pieces.append((word, new))
    return pieces


def measure_of_change(runs: Sequence[RunView]) -> Column | None:
    """The score that ranks gains: the last retriever's reciprocal rank, else CIDEr."""
    names = [f"{name}_MRR" for name in reversed(runs[0].result.protocol.listeners)]
    key = next((key for key in [*names, "CIDEr"] if all(key in run.result.per_image for run in runs)), None)
    return None if key is None else describe(key)


@dataclass(frozen=True)
class Flag:
    """A short judgement of a caption; ``tone`` is good, bad or plain."""

    text: str
    tone: str


@dataclass(frozen=True)
class Line:
    """A model's caption of an image, in pieces with whether their words are new to the first model's caption."""

    row: int
    name: str
    pieces: list[tuple[str, bool]]
    flags: list[Flag]


@dataclass(frozen=True)
class Card:
    """An image with its references, every model's caption, and a table of its scores, one row per score."""

    id: str
    source: str | None
    pixelated: bool
    alt: str
    references: list[str]
    lines: list[Line]
    scores: list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Gallery:
    """The images of the page.

    Args:
        cards: one per image.
        about: how many there are and how they were chosen.
        columns: scores to order by.
        faults: the filters.
        values: what the page's script orders and filters by, as JSON that is safe inside a script element.
        unread: why pictures are missing: id and reason.
    """

    cards: list[Card]
    about: str
    columns: list[Column]
    faults: list[str]
    values: str
    unread: list[tuple[str, str]]


def gallery(runs: Sequence[RunView], dataset: CaptionDataset | None, *, images: int, seed: int) -> Gallery:
    """The images that later runs gain or lose most on, that were rewritten most, or that score worst, and as many drawn at
    random, so that the page is not a choice of either successes or failures.

    Args:
        runs: the first is what later ones are compared to.
        dataset: pictures and references; without it there are captions and scores alone.
        images: how many.
        seed: of those drawn at random.

    Raises:
        UsageError: the runs caption images that the data set lacks.
    """
    ids = list(runs[0].result.captions)
    missing = [] if dataset is None else [image_id for image_id in ids if image_id not in dataset.position]
    if missing and dataset is not None:
        raise UsageError(
            f"{runs[0].name} captions {count_of(len(missing), 'image')} that {dataset.name} lacks, first {missing[0]!r}: "
            "name the data and the split the runs were evaluated on."
        )
    columns = score_columns(runs)
    scores = [scores_of(run, columns) for run in runs]
    chosen = choose(runs, scores, columns, images=images, seed=seed)
    unread: list[tuple[str, str]] = []
    cards = [_card(runs, scores, columns, dataset, i, unread) for i in chosen]
    faults = list(dict.fromkeys(fault for one in scores for i in chosen for fault in one.faults[i]))
    about = _about(len(chosen), len(ids))
    return Gallery(cards, about, columns, faults, _values(runs, scores, columns, faults, chosen), unread)


def _about(shown: int, every: int) -> str:
    if shown == every:
        return f"All {every} images."
    return (
        f"{shown} of {every} images: half of them because captions gain or lose most there, were rewritten most, or score "
        "worst by some measure, half drawn at random."
    )


def choose(
    runs: Sequence[RunView], scores: Sequence[Scores], columns: Sequence[Column], *, images: int, seed: int
) -> list[str]:
    """``images`` ids without repeats; what extreme values chose comes first, one of each kind in turn."""
    ids = list(runs[0].result.captions)
    if images >= len(ids):
        return ids
    turns = zip_longest(*_extremes(runs, scores, columns))
    found = dict.fromkeys(i for turn in turns for i in turn if i is not None)
    taken = list(found)[: images // 2]
    extreme = set(taken)
    rest = [i for i in ids if i not in extreme]
    return taken + random.Random(seed).sample(rest, images - len(taken))


def _extremes(runs: Sequence[RunView], scores: Sequence[Scores], columns: Sequence[Column]) -> list[list[str]]:
    """Lists of ids, the most extreme first: gains, losses, rewritten captions, then the worst by each score of each run."""
    lists = []
    ids, measure = list(runs[0].result.captions), measure_of_change(runs)
    if len(runs) > 1:
        gains = _gains(scores, measure, ids)
        moved = [i for i in sorted(ids, key=lambda i: (-gains[i], i)) if gains[i]]
        lists += [[i for i in moved if gains[i] > 0], [i for i in reversed(moved) if gains[i] < 0]]
        first = runs[0].result.captions
        changed = {i: sum(rewritten(run.result.captions[i], first[i]) for run in runs[1:]) for i in ids}
        lists.append([i for i in sorted(ids, key=lambda i: (-changed[i], i)) if changed[i]])
    for own in scores[1:] or scores:
        for column in columns:
            values = own.columns.get(column.key, {})
            lists.append(sorted(values, key=lambda i: (level(column, values[i]), i)))
    return lists


def _gains(scores: Sequence[Scores], measure: Column | None, ids: Sequence[str]) -> dict[str, float]:
    """Image id -> mean over later runs of the gain over the first."""
    if measure is None:
        return dict.fromkeys(ids, 0.0)
    values = [own.columns.get(measure.key, {}) for own in scores]

    def gain(later: dict[str, float], image_id: str) -> float:
        both = (values[0].get(image_id), later.get(image_id))
        return 0.0 if None in both else level(measure, both[1]) - level(measure, both[0])  # type: ignore[arg-type]

    return {i: sum(gain(later, i) for later in values[1:]) / (len(scores) - 1) for i in ids}


def _card(
    runs: Sequence[RunView],
    scores: Sequence[Scores],
    columns: Sequence[Column],
    dataset: CaptionDataset | None,
    image_id: str,
    unread: list[tuple[str, str]],
) -> Card:
    source, pixelated, references = None, False, list[str]()
    if dataset is not None:
        example = dataset[dataset.position[image_id]]
        references = [text.strip() for text in example.references]
        try:
            source, pixelated = picture_of(example.image)
        except (UsageError, OSError) as error:
            unread.append((image_id, str(error)))
    alt = f"Image {image_id}" + (f": {references[0]}" if references else "")
    first = runs[0].result.captions[image_id]
    lines = []
    for row, (run, own) in enumerate(zip(runs, scores, strict=True)):
        caption = run.result.captions[image_id]
        pieces = new_words(caption, first) if row else [(caption, False)] if caption.strip() else []
        lines.append(Line(row, run.name, pieces, _flags(run, own, image_id)))
    rows = [(c.label, [c.text(own.columns.get(c.key, {}).get(image_id)) for own in scores]) for c in columns]
    return Card(image_id, source, pixelated, alt, references, lines, rows)


def _flags(run: RunView, own: Scores, image_id: str) -> list[Flag]:
    flags = []
    position = list(run.result.captions).index(image_id) if run.result.protocol.listeners else 0
    for listener in run.result.protocol.listeners:
        ranks = run.result.per_image.get(f"{listener}_rank")
        if ranks is not None and ranks[position] is not None:
            rank = int(ranks[position])
            flags.append(Flag(f"{listener}: rank {rank}", "good" if rank == 1 else "plain"))
    faults = [fault for fault in own.faults[image_id] if not fault.startswith("not found")]
    return flags + [Flag(fault, "bad") for fault in faults]


def _values(
    runs: Sequence[RunView],
    scores: Sequence[Scores],
    columns: Sequence[Column],
    faults: Sequence[str],
    chosen: Sequence[str],
) -> str:
    """Per run: each score as printed and as compared, in the cards' order; numbers of its faults; share of words changed."""
    first = runs[0].result.captions
    told = []
    for run, own in zip(runs, scores, strict=True):
        shown: list[Any] = []
        for column in columns:
            values = own.columns.get(column.key, {})
            found = [values.get(i) for i in chosen]
            shown.append(
                {
                    "value": [None if v is None else round(v * column.scale, 4) for v in found],
                    "level": [None if v is None else round(level(column, v), 6) for v in found],
                }
            )
        wrong = [[faults.index(fault) for fault in own.faults[i]] for i in chosen]
        changed = [round(rewritten(run.result.captions[i], first[i]), 2) for i in chosen]
        told.append({"scores": shown, "faults": wrong, "rewritten": changed})
    return safe_json({"runs": told})
