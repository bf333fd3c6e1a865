"""METEOR 1.5 of captions, from the statistics of their alignments (English, ranking task)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tellapart.metrics.meteor.align import WEIGHTS, Match, align, count_chunks
from tellapart.metrics.meteor.match import Sentence, Vocabulary
from tellapart.metrics.meteor.normalise import normalise
from tellapart.metrics.meteor.resources import Resources, load_resources

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
COLUMNS = 23
"""Statistics of a caption, in the order of the reference implementation: words and function words of caption and
reference; content words and function words matched, of caption and reference, of each of four modules; chunks; words
matched of caption and reference."""
_CAPTION_CONTENT, _REFERENCE_CONTENT = [4, 8, 12, 16], [5, 9, 13, 17]
_CAPTION_FUNCTION, _REFERENCE_FUNCTION = [6, 10, 14, 18], [7, 11, 15, 19]


STATISTICS = (
    "meteor_matched",
    "meteor_weight",
    "meteor_reference_matched",
    "meteor_reference_weight",
    "meteor_chunks",
    "meteor_matched_words",
    "meteor_reference_matched_words",
    "meteor_words",
    "meteor_reference_words",
)
"""What METEOR is computed from, of a caption or summed over a set: weighted matches and weighted words of captions, the
same of references, chunks, words matched on both sides, words on both sides."""


def meteor_counts(
    candidates: Sequence[str], references: Sequence[Sequence[str]], resources: Resources | None = None
) -> np.ndarray:
    """``[N, 23]``: what METEOR counts of each caption with the reference that gives it the highest score.

    Args:
        candidates: N captions, tokenised (:func:`tellapart.metrics.ptb.ptb_tokenize`).
        references: N lists of at least one tokenised reference.
        resources: METEOR's data; by default those of the installed pycocoevalcap.

    Raises:
        ValueError: a caption has no reference.
        UsageError: pycocoevalcap is not installed.
    """
    if not all(references):
        raise ValueError("METEOR compares captions with references, but a caption has none")
    resources = load_resources() if resources is None else resources
    texts = {text: normalise(text) for text in (*candidates, *(one for group in references for one in group))}
    vocabulary = Vocabulary(list(texts.values()), resources)
    sentences = {text: vocabulary.sentence(words) for text, words in texts.items()}
    every: list[list[float]] = []
    for candidate, group in zip(candidates, references, strict=True):
        every += [_count(vocabulary, sentences[candidate], sentences[reference]) for reference in group]
    counts = np.array(every).reshape(-1, COLUMNS)
    values = meteor_of(statistics_of(counts))
    best, first = [], 0
    for group in references:
        best.append(first + int(np.argmax(values[first : first + len(group)])))
        first += len(group)
    return counts[best]


def _count(vocabulary: Vocabulary, caption: Sentence, reference: Sentence) -> list[float]:
    alignment = align(vocabulary.matches(caption, reference), len(reference.words))
    counts = [0.0] * COLUMNS
    counts[:4] = len(caption.words), len(reference.words), sum(caption.function), sum(reference.function)
    for match in alignment:
        _add(counts, match, caption.function, reference.function)
    counts[20] = count_chunks(alignment)
    return counts


def _add(counts: list[float], match: Match, caption: list[bool], reference: list[bool]) -> None:
    start, length, other, other_length, module = match
    first = 4 + 4 * module
    function = sum(caption[other : other + other_length])
    counts[first] += other_length - function
    counts[first + 2] += function
    function = sum(reference[start : start + length])
    counts[first + 1] += length - function
    counts[first + 3] += function
    counts[21] += other_length
    counts[22] += length


def statistics_of(counts: np.ndarray) -> np.ndarray:
    """``[..., 23]`` counts of captions -> the ``[..., 9]`` of :data:`STATISTICS`.

    As in the reference implementation a caption that matches all of its reference in one chunk has none: neither it nor
    the corpus it is part of is penalised for it.
    """
    each = np.moveaxis(counts, -1, 0)
    weights = np.array(WEIGHTS)

    def matched(content: list[int], function: list[int]) -> np.ndarray:
        return DELTA * np.tensordot(weights, each[content], 1) + (1 - DELTA) * np.tensordot(weights, each[function], 1)

    def weight(words: int, functions: int) -> np.ndarray:
        return DELTA * (each[words] - each[functions]) + (1 - DELTA) * each[functions]

    caption = (matched(_CAPTION_CONTENT, _CAPTION_FUNCTION), weight(0, 2))
    reference = (matched(_REFERENCE_CONTENT, _REFERENCE_FUNCTION), weight(1, 3))
    words, reference_words, chunks, own, other = (each[column] for column in (0, 1, 20, 21, 22))
    whole = (chunks == 1) & (own == words) & (other == reference_words)
    return np.stack([*caption, *reference, np.where(whole, 0, chunks), own, other, words, reference_words], axis=-1)


def meteor_statistics(
    candidates: Sequence[str], references: Sequence[Sequence[str]], resources: Resources | None = None
) -> np.ndarray:
    """``[N, 9]``: the :data:`STATISTICS` of each caption; arguments and errors are those of :func:`meteor_counts`."""
    return statistics_of(meteor_counts(candidates, references, resources))


def meteor_of(statistics: np.ndarray) -> np.ndarray:
    """METEOR as a fraction, from statistics of captions or sums of them.

    ``F = PR / (alpha P + (1 - alpha) R)``, ``penalty = gamma (chunks / matched words)^beta``, ``F (1 - penalty)``
    (Denkowski & Lavie 2014, section 3).

    Args:
        statistics: ``[..., 9]``, as :data:`STATISTICS`.

    Returns:
        ``[...]``.
    """
    each = np.moveaxis(np.asarray(statistics, np.float64), -1, 0)
    precision, recall = _ratio(each[0], each[1]), _ratio(each[2], each[3])
    chunks, own, other = each[4:7]
    mean = _ratio(precision * recall, ALPHA * precision + (1 - ALPHA) * recall)
    return mean * (1 - GAMMA * _ratio(chunks, (own + other) / 2) ** BETA)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def meteor(
    candidates: Sequence[str], references: Sequence[Sequence[str]], resources: Resources | None = None
) -> tuple[float, np.ndarray]:
    """METEOR 1.5 of a corpus, from the sums of its statistics, and of each caption (fractions).

    Args and errors as for :func:`meteor_counts`.

    Returns:
        ``(corpus, [N])``.
    """
    statistics = meteor_statistics(candidates, references, resources)
    return float(meteor_of(statistics.sum(axis=0))), meteor_of(statistics)
