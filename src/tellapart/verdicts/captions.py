"""The rules that read captions alone, for captions of any origin: human captions of the same images replace the start model's.

Limits are those of the rules on logs (``rules.py``), so that there is one of each. They were checked on published captioners
(docs/results/captioners.md), and that of *few words* was set on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tellapart.verdicts.rules import RULES, share

FEW_WORDS = 0.32
"""Share of human captions' different words. Published captioners known for few words have at most 0.29, others 0.35 or more."""

HUMAN = {
    "bad_endings": 0.4,
    "repetition": 0.4,
    "distinct_in_1000": 99.9,
    "most_common_in_1000": 0.2,
    "types_in_1000": 1585.0,
}
"""The same figures of human captions of COCO's Karpathy test split (5,000 images, mean over the five captions of an image)."""


@dataclass(frozen=True)
class CaptionRule:
    """A limit for a figure of a set of captions.

    Args:
        name: short.
        key: of the figure.
        limit: the figure of human captions -> the limit.
        above: whether the values above the limit are the wrong ones.
        says: what it means and what to do.
        change: whether it may be intended, so that it is reported and not warned of.
    """

    name: str
    key: str
    limit: Callable[[float], float]
    above: bool
    says: str
    change: bool = False


def _as_in_logs(name: str) -> tuple[Callable[[float], float], bool]:
    """Limit and side of the rule of that name on logs."""
    rule = next(rule for rule in RULES if rule.name == name)
    return rule.limit, rule.above


CAPTION_RULES = (
    CaptionRule(
        "bad endings",
        "bad_endings",
        *_as_in_logs("bad endings"),
        "Captions end on words like 'a' or 'of', as with a reward that does not score the end of the caption: train with the end "
        "token in the reward's document frequencies, or raise the longest length.",
    ),
    CaptionRule(
        "repetition",
        "repetition",
        *_as_in_logs("repetition"),
        "Captions say the same words again and again: set no_repeat_ngram_size, or train with a lower learning_rate.",
    ),
    CaptionRule(
        "one caption",
        "most_common_in_1000",
        *_as_in_logs("one caption"),
        "One caption is given to many images: the captioner has collapsed or does not see the image.",
    ),
    CaptionRule(
        "few distinct",
        "distinct_in_1000",
        *_as_in_logs("few distinct"),
        "Different images get the same captions: train with a reward that tells images apart.",
    ),
    CaptionRule(
        "few words",
        "types_in_1000",
        share(FEW_WORDS),
        False,
        "The captions use few different words: train with a reward that tells images apart, or sample instead of beam search.",
    ),
    CaptionRule(
        "shorter",
        "mean_length",
        *_as_in_logs("shorter"),
        "Captions are much shorter than people's: raise the shortest length, or change the reward.",
    ),
    CaptionRule(
        "longer",
        "mean_length",
        *_as_in_logs("longer"),
        "Captions are much longer than people's, which lowers n-gram metrics whether or not they are true.",
        change=True,
    ),
)
"""What is looked for in captions."""


@dataclass(frozen=True)
class CaptionVerdict:
    """A rule that captions break.

    Args:
        rule: which.
        value: the figure.
        human: that of human captions.
        limit: what was passed.
    """

    rule: CaptionRule
    value: float
    human: float
    limit: float

    @property
    def text(self) -> str:
        """The sentence with the figures."""
        figures = f"{self.rule.key} {self.value:.4g}; people {self.human:.4g}, limit {self.limit:.4g}"
        return f"{self.rule.name}: {self.rule.says[:-1]} ({figures})."


def examine_captions(figures: Mapping[str, float], human: Mapping[str, float] | None = None) -> list[CaptionVerdict]:
    """The rules that a set of captions breaks.

    Args:
        figures: of the captions.
        human: the same of human captions; by default ``HUMAN``, without rules on length.

    Example:
        >>> [verdict.rule.name for verdict in examine_captions({"bad_endings": 34.4, "types_in_1000": 553.0})]
        ['bad endings']
    """
    known = HUMAN if human is None else human
    found = []
    for rule in CAPTION_RULES:
        if rule.key in figures and rule.key in known:
            value, limit = figures[rule.key], rule.limit(known[rule.key])
            if value > limit if rule.above else value < limit:
                found.append(CaptionVerdict(rule, value, known[rule.key], limit))
    return found
