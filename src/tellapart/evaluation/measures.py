"""What can be measured of captions as text, one an image: for the whole set, and a row an image where that means something.

Each function returns ``(metrics, columns)``. A column that carries a metric's name averages to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tellapart.metrics.coco import coco_metrics
from tellapart.metrics.diversity import caption_statistics, self_bleu
from tellapart.metrics.tokenizer import tokenize

Measured = tuple[dict[str, float], dict[str, list[float]]]

BAD_ENDINGS = frozenset(
    (
        "a",
        "an",
        "the",
        "in",
        "for",
        "at",
        "of",
        "with",
        "before",
        "after",
        "on",
        "upon",
        "near",
        "to",
        "is",
        "are",
        "am",
    )
)
"""Words no finished caption ends on: the list of ImageCaptioning.pytorch (Ruotian Luo)."""


def reference_measures(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Measured:
    """Bleu_1..4 (of the whole set; no columns, since a corpus BLEU is no mean of images), ROUGE_L and CIDEr.

    Raises:
        UsageError: an image has no references.
    """
    corpus, rows = coco_metrics(captions, references)
    averaging = [key for key in ("ROUGE_L", "CIDEr") if key in corpus]
    return corpus, {key: [rows[image_id][key] for image_id in captions] for key in averaging}


def style_measures(captions: Sequence[str]) -> Measured:
    """Self-BLEU (0 to 100), shares in percent, mean length in words."""
    texts = tokenize(captions)
    figures = caption_statistics(texts)
    lengths = [float(len(text.split())) for text in texts]
    bad = [100.0 * (text.rpartition(" ")[2] in BAD_ENDINGS) for text in texts]
    metrics = {
        "distinct_captions": 100 * figures["distinct"],
        "most_common_caption": 100 * figures["most_common"],
        "repetition": 100 * figures["repeated_bigrams"],
        "bad_endings": float(np.mean(bad)),
        "mean_length": figures["length"],
    }
    if len(texts) > 1:
        metrics["Self-BLEU"] = 100 * float(np.mean(self_bleu(texts)))
    return metrics, {"bad_endings": bad, "mean_length": lengths}
