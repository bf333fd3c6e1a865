"""How the metrics of a set follow from rows of its images: what a bootstrap computes again for every draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tellapart.metrics.bleu import Matches, bleu_of, guesses
from tellapart.metrics.meteor import STATISTICS, meteor_of
from tellapart.packed import Numbers

ORDERS = 4
BLEU = {f"Bleu_{n}": n for n in range(1, ORDERS + 1)}
MATCHES = tuple(f"bleu_matches_{n}" for n in BLEU.values())
LENGTHS = ("bleu_words", "bleu_reference_words")
"""Columns that add up to what the BLEU of a set is computed from: n-grams of each image's caption that are in its
references, words of the caption, words of the reference closest in length."""

BLEU_ROUNDING = 1e-4
"""Differences of BLEU, a fraction, that count as none: without a matched n-gram coco-caption's small constants decide."""

PERPLEXITY = "perplexity"
METEOR = "METEOR"
SURPRISE = ("perplexity_nll", "perplexity_tokens")
"""Columns that add up to what the perplexity of a set is computed from: negative log-probability of each image's caption,
and its tokens."""


def bleu_columns(matches: Matches) -> dict[str, Sequence[int]]:
    """The columns of ``MATCHES`` and ``LENGTHS``, one value per image."""
    columns = (*matches.correct, matches.lengths, matches.reference_lengths)
    return dict(zip((*MATCHES, *LENGTHS), map(Numbers, columns), strict=True))


def perplexity_of(nll: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """``exp(nll / tokens)`` of sums over a set, NaN where it has no tokens."""
    tokens = np.asarray(tokens, np.float64)
    return np.exp(np.divide(nll, tokens, out=np.full(tokens.shape, np.nan), where=tokens > 0))


class Aggregate:
    """Metrics that rows of images determine: averages of a column over the images that have a value, and the BLEU, METEOR and
    perplexity of the set.

    Args:
        metrics: names of metrics.
        per_image: column -> one value per image, None where undefined.

    Attributes:
        keys: the metrics among those named that can be computed so.
        rows: ``[n, m]``, what has to be summed over images.
    """

    def __init__(self, metrics: Sequence[str], per_image: Mapping[str, Sequence[Any]]) -> None:
        self._averages = [key for key in metrics if _complete(per_image.get(key))]
        counted = all(_complete(per_image.get(name)) for name in (*MATCHES, *LENGTHS))
        self._bleu = [key for key in metrics if key in BLEU and key not in self._averages and counted]
        read = all(_complete(per_image.get(name)) for name in SURPRISE)
        self._perplexity = [PERPLEXITY] if read and PERPLEXITY in metrics else []
        aligned = METEOR in metrics and METEOR not in self._averages
        aligned = aligned and all(_complete(per_image.get(name)) for name in STATISTICS)
        self._meteor = [METEOR] if aligned else []
        whole = [*self._averages, *self._bleu, *self._meteor, *self._perplexity]
        self._partial = [key for key in metrics if key not in whole and _any(per_image.get(key))]
        self.keys = [*whole, *self._partial]
        names = [*self._averages, *((*MATCHES, *LENGTHS) if self._bleu else ())]
        guessed = len(names)
        later = [*(STATISTICS if self._meteor else ()), *(SURPRISE if self._perplexity else ())]
        images = len(next(iter(per_image.values()), ()))
        self.rows = np.empty((images, len(names) + ORDERS * bool(self._bleu) + len(later)))
        for place, name in enumerate(names):
            self.rows[:, place] = per_image[name]
        if self._bleu:
            self.rows[:, guessed : guessed + ORDERS] = guesses(self.rows[:, guessed - len(LENGTHS)], ORDERS).T
        for place, name in enumerate(later, self.rows.shape[1] - len(later)):
            self.rows[:, place] = per_image[name]
        partial = [np.array(per_image[name], np.float64) for name in self._partial]
        known = [~np.isnan(column) for column in partial]
        self.rows = np.column_stack([self.rows, *map(np.nan_to_num, partial), *known]) if partial else self.rows

    def __call__(self, sums: np.ndarray) -> np.ndarray:
        """``[..., k]``, the metrics of ``keys``, from the sums ``[..., m]`` of rows of as many images as there are; NaN where no
        image has a value."""
        count, rest = len(self._averages), len(SURPRISE) * len(self._perplexity)
        aligned = len(STATISTICS) * len(self._meteor)
        parts = np.moveaxis(sums, -1, 0)
        parts, partial = np.split(parts, [len(parts) - 2 * len(self._partial)])
        values = [parts[:count] / len(self.rows)]
        if self._bleu:
            of_bleu = parts[count : len(parts) - rest - aligned]
            correct, (words, reference_words), guessed = of_bleu[:ORDERS], of_bleu[ORDERS:-ORDERS], of_bleu[-ORDERS:]
            values.append(bleu_of(Matches(correct, guessed, words, reference_words), [BLEU[key] for key in self._bleu]))
        if self._meteor:
            of_meteor = parts[len(parts) - rest - aligned : len(parts) - rest]
            values.append(meteor_of(np.moveaxis(of_meteor, 0, -1))[None])
        if self._perplexity:
            values.append(perplexity_of(*parts[len(parts) - rest :])[None])
        total, known = np.split(partial, 2)
        values.append(np.divide(total, known, out=np.full(total.shape, np.nan), where=known > 0))
        return np.moveaxis(np.concatenate(values), 0, -1)


def _complete(column: Sequence[Any] | None) -> bool:
    """Whether there is a value for every image."""
    if isinstance(column, Numbers):
        return len(column) > 0 and not np.isnan(column.array).any()
    return column is not None and len(column) > 0 and all(value is not None and value == value for value in column)


def _any(column: Sequence[Any] | None) -> bool:
    """Whether there are numbers, of some images at least."""
    values = [] if column is None else [value for value in column if value is not None]
    return len(values) > 0 and all(isinstance(value, (int, float)) for value in values) and any(v == v for v in values)
