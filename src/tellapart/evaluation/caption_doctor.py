"""Figures of a set of captions that the doctor's text rules read, and what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tellapart.metrics.diversity import PIECE, caption_statistics, in_pieces, type_token_ratio, vocabulary_size
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.metrics.style import style_columns
from tellapart.verdicts.captions import CaptionVerdict, examine_captions

LEAST = 100
"""Captions below which shares mean little."""

SHARES = {"distinct_in_1000", "most_common_in_1000"}
"""Figures to which a single caption of a few adds a large share."""


@dataclass(frozen=True)
class Checked:
    """Findings in a set of captions.

    Args:
        figures: of the captions.
        human: the same of the references; None where there are none.
        verdicts: rules that the captions break.
    """

    figures: dict[str, float]
    human: dict[str, float] | None
    verdicts: list[CaptionVerdict]

    @property
    def wrong(self) -> bool:
        """Whether a rule is broken that is never intended."""
        return any(not verdict.rule.change for verdict in self.verdicts)


def check_captions(captions: Sequence[str], references: Sequence[Sequence[str]] | None = None) -> Checked:
    """Figures of captions, and the rules they break.

    Args:
        captions: one per image, as they were written.
        references: human captions of the same images, in the same order; images without any are skipped. The figures of the
            first of each image, of the second and so on are averaged; without them the figures of COCO captions take their place.

    Example:
        >>> [verdict.rule.name for verdict in check_captions(["a dog on a"] * 2000).verdicts]
        ['bad endings', 'one caption', 'few distinct', 'few words']
    """
    human = None
    given = [own for own in references or () if own]
    if given and references is not None:
        captions = [caption for caption, own in zip(captions, references, strict=True) if own]
    figures = caption_figures(captions)
    if given:
        columns = range(min(map(len, given)))
        human = _mean([caption_figures([own[column] for own in given]) for column in columns])
    readable = figures if human is not None or len(captions) >= PIECE else _without_counts(figures, len(captions))
    return Checked(figures, human, examine_captions(readable, human))


def caption_figures(captions: Sequence[str]) -> dict[str, float]:
    """``types``, ``TTR1``, ``TTR2`` (from 1,000 words); and what rules read: shares in percent, and counts per 1,000 captions.

    Counts per 1,000 are means over full thousands, so that they do not grow with the set;
    below 1,000 captions they are those of all.

    Args:
        captions: as they were written.

    Raises:
        UsageError: there are none.
    """
    words = ptb_tokenize(captions)
    pieces = [(caption_statistics(piece), vocabulary_size(piece)) for piece in in_pieces(words)]
    style = style_columns(words)
    figures = {
        "captions": float(len(words)),
        "types": float(vocabulary_size(words)),
        "types_in_1000": float(np.mean([types for _, types in pieces])),
        "TTR1": type_token_ratio(words),
        "TTR2": type_token_ratio(words, 2),
        "distinct_in_1000": 100 * float(np.mean([piece["distinct"] for piece, _ in pieces])),
        "most_common_in_1000": 100 * float(np.mean([piece["most_common"] for piece, _ in pieces])),
        "repetition": 100 * caption_statistics(words)["repeated_bigrams"],
        "bad_endings": 100 * float(style["bad_endings"].mean()),
        "openers": 100 * float(style["openers"].mean()),
        "mean_length": float(style["length"].mean()),
    }
    return {key: value for key, value in figures.items() if not np.isnan(value)}


def _without_counts(figures: Mapping[str, float], captions: int) -> dict[str, float]:
    """Without what cannot be held against COCO captions where there are fewer than a thousand."""
    left_out = {"types_in_1000"} | (SHARES if captions < LEAST else set())
    return {key: value for key, value in figures.items() if key not in left_out}


def _mean(columns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of what all have: a set of few words has no TTR."""
    shared = [key for key in columns[0] if all(key in column for column in columns)]
    return {key: float(np.mean([column[key] for column in columns])) for key in shared}
