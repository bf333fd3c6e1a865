"""What is known of one caption by itself: its scores, its faults, and how far it is from another model's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from tellapart.evaluation.columns import CAPTION_METRICS, Column, describe, listener_metric
from tellapart.evaluation.report.runs import RunView

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
    """The score that tells gains: the last retriever's reciprocal rank, else CIDEr."""
    names = [f"{name}_MRR" for name in reversed(runs[0].result.protocol.listeners)]
    key = next((key for key in [*names, "CIDEr"] if all(key in run.result.per_image for run in runs)), None)
    return None if key is None else describe(key)
