"""What is known to be wrong with a captioner, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tellapart.evaluation.alarms import Alarm
from tellapart.evaluation.columns import describe

LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    "grammatical": (lambda v: v < 99, "{} % of its captions can be read by the data's grammar."),
    "truthful": (lambda v: v < 95, "{} % of its captions are grammatical and true of their image."),
    "hallucinated": (lambda v: v > 1, "{} % of the attributes it names are not in the image."),
    "CHAIRs": (lambda v: v > 1, "{} % of its captions mention an object that the image lacks."),
    "unfinished": (lambda v: v > 1, "{} % of its captions are cut at the longest length."),
    "bad_endings": (lambda v: v > 1, "{} % of its captions stop on a word like 'a' or 'of'."),
    "repetition": (lambda v: v > 10, "{} % of the pairs of words in a caption repeat an earlier pair of it."),
    "most_common_caption": (lambda v: v > 5, "Its most frequent caption is given to {} % of the images."),
    "distinct_captions": (lambda v: v < 80, "{} % of its captions differ from those of all other images."),
    "openers": (lambda v: v > 5, "{} % of its captions begin with words like 'a picture of'."),
}
"""Metric -> when it is worth a sentence, and the sentence."""


def failures(
    metrics: Mapping[str, float], before: Mapping[str, float] | None, alarms: Sequence[Alarm]
) -> tuple[list[str], list[str]]:
    """``(of the captioner, of its training)``, one sentence each.

    Args:
        metrics: of the captioner.
        before: of the model it began from.
        alarms: of the training's log.
    """
    told = []
    for key, (worth, sentence) in LIMITS.items():
        if key in metrics and worth(metrics[key]):
            column, text = describe(key), sentence.format(describe(key).text(metrics[key]))
            if before is not None and key in before:
                text = f"{text[:-1]} (before training: {column.text(before[key])})."
            told.append(text)
    return told, [f"From step {alarm.step}: {alarm.text}" for alarm in alarms]


def looked_at(metrics: Mapping[str, float]) -> str:
    """The measures of :data:`LIMITS` that were taken, in words."""
    return ", ".join(describe(key).label for key in LIMITS if key in metrics)
