"""ROUGE-L as coco-caption computes it (Lin and Hovy 2004): the longest common subsequence of words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tellapart.metrics.occurrences import Lanes, word_masks
from tellapart.metrics.pairs import Pairs

BETA = 1.2
"""Weight of recall against precision; coco-caption's."""

_IMAGES, _WORDS, _CELLS = 256, 64, 1 << 20
"""Images that are compared together, words that a reference may have there, and cells of the table of their words."""


def rouge_l(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """ROUGE-L of each caption: the F measure of the best precision and the best recall, each of any reference.

    Captions are cut at single spaces, not at all white space: the reference tool does so, and its tokenizer gives
    fractions as one word with a no-break space in it. So the empty caption is one empty word.

    Args:
        candidates: N tokenised captions.
        references: N lists of at least one tokenised reference.

    Returns:
        N fractions; their mean is the value of the corpus.

    Raises:
        ValueError: a caption has no reference.
    """
    found: list[float] = rouge_of(Pairs.of(candidates, references), candidates, references).tolist()
    return found


def rouge_of(pairs: Pairs, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """``[N]`` float64: the same of captions that are numbered, too.

    Captions are read as text and one after the other where white space other than single spaces, an empty text, a long
    reference or many references stand against comparing numbers.
    """
    scores = np.empty(len(candidates))
    for some, part in pairs.parts(_IMAGES):
        small = part.others.lengths.max() <= _WORDS and part.sizes.max() * len(part.others.words) <= _CELLS
        if small:
            scores[some] = _together(part)
        for place in some.start + np.flatnonzero(~part.plain if small else np.ones_like(part.plain)):
            scores[place] = _best(candidates[place].split(" "), references[place])
    return scores


def _together(pairs: Pairs) -> np.ndarray:
    """``rouge_of`` of captions whose references have at most 64 words, all at once.

    The longest common subsequence is read off one row of its table, which is the bits of one number for each reference (Hyyrö
    2004): as in ``_common``, but the bits are places of the reference.
    """
    lanes, lengths = Lanes(pairs.sizes), pairs.own.lengths
    masks = word_masks(pairs.own, np.arange(len(lengths)), pairs.others, pairs.sizes)
    order, starts = np.argsort(-lengths, kind="stable"), pairs.own.starts
    rows = np.full((lanes.count, len(lengths)), np.iinfo(masks.dtype).max, masks.dtype)
    for place, count in enumerate(np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)), side="left")):
        left = rows[:, :count]
        match = left & masks[:, starts[order[:count]] + place]
        np.bitwise_or(left + match, left - match, out=left)
    others = lanes.spread(pairs.others.lengths)
    bits = (np.uint64(1) << np.minimum(others, _WORDS - 1).astype(np.uint64)) - np.uint64(1)
    bits[others == _WORDS] = np.iinfo(np.uint64).max
    common = np.empty_like(others)
    common[:, order] = others[:, order] - np.bitwise_count(rows & bits[:, order])
    precision = (common / np.maximum(lengths, 1)).max(axis=0)
    recall = (common / np.maximum(others, 1)).max(axis=0)
    scores = (1 + BETA**2) * precision * recall
    return np.divide(scores, recall + BETA**2 * precision, out=np.zeros_like(scores), where=common.any(axis=0))


def _best(words: list[str], references: Sequence[str]) -> float:
    masks: dict[str, int] = {}
    for place, word in enumerate(words):
        masks[word] = masks.get(word, 0) | 1 << place
    precision = recall = 0.0
    for reference in references:
        others = reference.split(" ")
        common = _common(masks, len(words), others)
        precision, recall = max(precision, common / len(words)), max(recall, common / len(others))
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _common(masks: dict[str, int], length: int, others: list[str]) -> int:
    """Length of the longest common subsequence: one row of its table is the bits of one number (Hyyrö 2004)."""
    everywhere = (1 << length) - 1
    row = everywhere
    for word in others:
        if mask := masks.get(word):
            match = row & mask
            row = (row + match) | (row - match)
    return length - (row & everywhere).bit_count()
