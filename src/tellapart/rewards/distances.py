"""How far the captions drawn for one image are from one another: callables ``rollout -> [B, s, s]``, without gradient.

All read words, cut as for the metrics; a rollout has the same number s of captions of every image, image by image, as
``generate`` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.metrics.cider import CiderDScorer
from tellapart.metrics.frequencies import DocumentFrequencies
from tellapart.metrics.pairwise import bleu_distances
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.types import Rollout

Distance = Callable[[Rollout], Tensor]
"""``rollout -> [B, s, s]`` float32: entry j, k is the distance of caption j from caption k; symmetric."""


def bleu_distance(rollout: Rollout) -> Tensor:
    """One minus BLEU-3 plus one minus BLEU-4 of each caption against each other, both directions averaged; 0 to 2.

    SLE's distance (Chen & Jin 2020, section 4; see ``bleu_distances``).
    """
    return _tensor(bleu_distances(_samples(rollout)), rollout)


def edit_distance(rollout: Rollout) -> Tensor:
    """Levenshtein distance in words, divided by the length of the longer caption; 0 to 1."""
    samples = [[text.split() for text in captions] for captions in _samples(rollout)]
    s = len(samples[0]) if samples else 0
    pairs = list(combinations(range(s), 2))
    counted = _levenshtein([(captions[j], captions[k]) for captions in samples for j, k in pairs])
    distances = np.zeros((len(samples), s, s))
    for number, (j, k) in enumerate(pairs):
        distances[:, j, k] = distances[:, k, j] = counted[number :: len(pairs)]
    return _tensor(distances, rollout)


class CiderDistance:
    """One minus the CIDEr-D of each caption with each other as its only reference, both directions averaged; 0 to 1.

    It is divided by the mean of what the two captions score with themselves, which is 10 only from four words on, so that a
    caption is at 0 from one that says the same. Clipping makes CIDEr-D depend on the direction where a word is repeated.

    Args:
        document_frequencies: those of the training references.
    """

    def __init__(self, document_frequencies: DocumentFrequencies) -> None:
        self._scorer = CiderDScorer(document_frequencies)

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[B, s, s]`` float32."""
        samples = [[text.split() for text in captions] for captions in _samples(rollout)]
        s = len(samples[0]) if samples else 0
        words = [caption for captions in samples for caption in captions]
        references = self._scorer.prepare([[caption] for caption in words])
        first = np.repeat(np.arange(len(words)), s)
        other = (first // max(s, 1)) * s + np.tile(np.arange(s), len(words))
        values = self._scorer.score([words[row] for row in first], other, references)
        scores = values.reshape(-1, s, s)
        with_itself = np.diagonal(scores, axis1=1, axis2=2)
        most = with_itself[:, :, None] + with_itself[:, None, :]
        alike = np.divide(scores + scores.swapaxes(1, 2), most, out=np.zeros_like(scores), where=most > 0)
        same = np.array([[[left == right for right in own] for left in own] for own in samples]).reshape(scores.shape)
        return _tensor(np.where(same, 0.0, np.clip(1 - alike, 0, 1)), rollout)


def _samples(rollout: Rollout) -> list[list[str]]:
    """B lists of s captions in words.

    Raises:
        UsageError: images have different numbers of captions, or these are not together.
    """
    images = rollout.image.tolist()
    s = images.count(images[0]) if images else 0
    if images != [row for row in dict.fromkeys(images) for _ in range(s)]:
        raise UsageError(
            "distances between the captions of an image need equally many captions of every image, drawn together: "
            "draw them with one num_return_sequences."
        )
    texts = ptb_tokenize(rollout.texts, alone=True)
    return [texts[start : start + s] for start in range(0, len(texts), s)] if s else []


def _levenshtein(pairs: Sequence[tuple[list[str], list[str]]]) -> np.ndarray:
    """``[P]``: edits over the longer length, 0 where both are empty; all pairs advance together, cell by cell."""
    number: dict[str, int] = {}
    sides = [[np.array([number.setdefault(w, len(number)) for w in pair[side]]) for pair in pairs] for side in (0, 1)]
    lengths = np.array([[len(words) for words in side] for side in sides]).reshape(2, -1)
    left, right = (_padded(side) for side in sides)
    row = np.arange(right.shape[1] + 1)[None].repeat(len(pairs), axis=0)
    rows = [row]
    for i in range(left.shape[1]):
        above, row = row, np.empty_like(row)
        row[:, 0] = i + 1
        for j in range(right.shape[1]):
            change = above[:, j] + (left[:, i] != right[:, j])
            row[:, j + 1] = np.minimum(np.minimum(above[:, j + 1], row[:, j]) + 1, change)
        rows.append(row)
    edits = np.stack(rows)[lengths[0], np.arange(len(pairs)), lengths[1]] if pairs else np.zeros(0)
    return edits / np.maximum(lengths.max(axis=0), 1)


def _padded(words: Sequence[np.ndarray]) -> np.ndarray:
    width = max(map(len, words), default=0)
    table = np.full((len(words), width), -1)
    for row, ids in enumerate(words):
        table[row, : len(ids)] = ids
    return table


def _tensor(distances: np.ndarray, rollout: Rollout) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(distances)).to(rollout.image.device, torch.float32)
