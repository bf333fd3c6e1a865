"""ROUGE-L as coco-caption computes it (Lin and Hovy 2004): the longest common subsequence of words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

BETA = 1.2
"""Weight of recall against precision; coco-caption's."""


def rouge_l(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """ROUGE-L of each caption: the F measure of the best precision and the best recall, each of any reference.

    Captions are cut at single spaces, not at all white space: the reference tool does so, and its tokenizer gives
    fractions as one word with a no-break space in it. So the empty caption is one empty word.

    Args:
        candidates: N tokenised captions.
        references: N lists of at least one tokenised reference.

    Returns:
        N fractions; their mean is the value of the corpus.
    """
    return list(rouge_ls(candidates, references))


def rouge_ls(candidates: Iterable[str], references: Iterable[Sequence[str]]) -> Iterator[float]:
    """The same one at a time."""
    return (_best(caption.split(" "), captions) for caption, captions in zip(candidates, references, strict=True))


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
