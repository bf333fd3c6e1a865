"""Measures of captions as text, one caption per image: for the whole set, and per image where defined.

Each function returns ``(metrics, columns)``. A column that carries a metric's name averages to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tellapart.evaluation.aggregate import BLEU, bleu_columns
from tellapart.metrics.coco import check_same_images, coco_columns
from tellapart.metrics.diversity import caption_statistics, self_bleu, type_token_ratio, vocabulary_size
from tellapart.metrics.frequencies import DocumentFrequencies
from tellapart.metrics.ptb import ptb_lines, ptb_tokenize
from tellapart.metrics.style import style_columns
from tellapart.packed import Numbers, TextLists, Texts

Measured = tuple[dict[str, float], dict[str, Any]]
"""Metrics, and columns of one value per image."""

Measure = Callable[[Mapping[str, str]], Measured]
"""``captions by image id -> (metrics, columns)``, such as the truth of a caption in a known world."""


def measured_by(measures: Iterable[Measure]) -> dict[str, str]:
    """Metric -> name and hash of the model or program that measures it, from measures with an attribute ``measured_by``."""
    return {key: what for measure in measures for key, what in getattr(measure, "measured_by", {}).items()}


def compared_with(measure: Measure, references: Mapping[str, Sequence[str]]) -> Measure:
    """A measure with other references, where it has references: those have a method ``against`` for that."""
    against = getattr(measure, "against", None)
    return measure if against is None else against(references)


def left_out(measures: Iterable[Measure]) -> dict[str, str]:
    """Metric -> a sentence on why it was not measured and what would help, from measures with an attribute ``left_out``,
    once they have measured."""
    return {key: why for measure in measures for key, why in getattr(measure, "left_out", {}).items()}


def reference_measures(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    frequencies: DocumentFrequencies | None = None,
) -> Measured:
    """Bleu_1..4, ROUGE_L and CIDEr of captions as they were written.

    Args:
        captions: image id -> caption.
        references: image id -> captions to compare with; exactly the same ids.
        frequencies: document frequencies for CIDEr; by default those of ``references``.

    Raises:
        UsageError: the ids differ, or an image has no references.
    """
    check_same_images(captions, references)
    return token_measures(*in_words(captions, references), frequencies=frequencies)


def in_words(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> tuple[Texts, TextLists]:
    """N captions, and N lists of the references of their images, as words joined by spaces.

    Captions and references are two files to the tokenizer, as in pycocoevalcap.
    """
    return rows_in_words(Texts.of(captions.values()), TextLists.of(references[image_id] for image_id in captions))


def rows_in_words(captions: Texts, references: TextLists) -> tuple[Texts, TextLists]:
    """The same of captions and references in the same order."""
    cut = TextLists(Texts.of(ptb_lines(references.texts)), references.ends)
    return Texts.of(ptb_lines(captions)), cut


def token_measures(
    candidates: Sequence[str], targets: Sequence[Sequence[str]], *, frequencies: DocumentFrequencies | None = None
) -> Measured:
    """The same of captions cut into words.

    BLEU of a set is not a mean over images: the columns have that of each caption on its own (``sentence_Bleu_4``), and what
    the BLEU of any set of these images is computed from (``tellapart.evaluation.aggregate``).
    """
    found, matches = coco_columns(candidates, targets, frequencies=frequencies)
    columns = {f"sentence_{key}" if key in BLEU else key: rows for key, (_, rows) in found.items()}
    return {key: value for key, (value, _) in found.items()}, columns | bleu_columns(matches)


def style_measures(captions: Sequence[str]) -> Measured:
    """Self-BLEU (0 to 100), shares in percent, mean length in words, of captions as they were written."""
    return token_style(ptb_tokenize(captions))


def token_style(texts: Sequence[str]) -> Measured:
    """The same of captions cut into words."""
    figures, style = caption_statistics(texts), style_columns(texts)
    columns = {name: 100 * style[name] for name in ("bad_endings", "openers", "colored")}
    columns["mean_length"] = style["length"]
    metrics = {
        "distinct_captions": 100 * figures["distinct"],
        "most_common_caption": 100 * figures["most_common"],
        "repetition": 100 * figures["repeated_bigrams"],
        **{name: float(np.mean(rows)) for name, rows in columns.items()},
        "vocabulary": float(vocabulary_size(texts)),
    }
    ratios = {f"TTR{n}": type_token_ratio(texts, n) for n in (1, 2)}
    metrics |= {key: value for key, value in ratios.items() if not np.isnan(value)}
    if len(texts) > 1:
        metrics["Self-BLEU"] = 100 * float(np.mean(self_bleu(texts)))
    return metrics, {name: Numbers(rows) for name, rows in columns.items()}
