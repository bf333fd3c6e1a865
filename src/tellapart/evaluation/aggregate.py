"""How the metrics of a set follow from rows of its images: what a bootstrap computes anew for every draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tellapart.metrics.bleu import Matches, bleu_of, guesses

ORDERS = 4
BLEU = {f"Bleu_{n}": n for n in range(1, ORDERS + 1)}
MATCHES = tuple(f"bleu_matches_{n}" for n in BLEU.values())
LENGTHS = ("bleu_words", "bleu_reference_words")
"""Columns that add up to what the BLEU of a set is computed from: n-grams of each image's caption that are in its
references, words of the caption, words of the reference closest in length."""


def bleu_columns(matches: Matches) -> dict[str, list[Any]]:
    """The columns of :data:`MATCHES` and :data:`LENGTHS`, one value an image."""
    columns = dict(zip(MATCHES, matches.correct.tolist(), strict=True))
    return columns | dict(zip(LENGTHS, (matches.lengths.tolist(), matches.reference_lengths.tolist()), strict=True))


class Aggregate:
    """Metrics that rows of images determine: averages of a column, and the BLEU of the set.

    Args:
        metrics: names of metrics.
        per_image: column -> one value an image, None where undefined.

    Attributes:
        keys: the metrics among those named that can be computed so.
        rows: ``[n, m]``, what has to be summed over images.
    """

    def __init__(self, metrics: Sequence[str], per_image: Mapping[str, Sequence[Any]]) -> None:
        self._averages = [key for key in metrics if _complete(per_image.get(key))]
        counted = all(_complete(per_image.get(name)) for name in (*MATCHES, *LENGTHS))
        self._bleu = [key for key in metrics if key in BLEU and key not in self._averages and counted]
        self.keys = [*self._averages, *self._bleu]
        columns = [np.array(per_image[key], np.float64) for key in self._averages]
        if self._bleu:
            columns += [np.array(per_image[name], np.float64) for name in (*MATCHES, *LENGTHS)]
            columns += [*guesses(columns[-len(LENGTHS)], ORDERS)]
        images = len(next(iter(per_image.values()), ()))
        self.rows = np.stack(columns, axis=1) if columns else np.empty((images, 0))

    def __call__(self, sums: np.ndarray) -> np.ndarray:
        """``[..., k]``, the metrics of ``keys``, from the sums ``[..., m]`` of rows of as many images as there are."""
        count = len(self._averages)
        means = sums[..., :count] / len(self.rows)
        if not self._bleu:
            return means
        parts = np.moveaxis(sums[..., count:], -1, 0)
        correct, (words, reference_words), guessed = parts[:ORDERS], parts[ORDERS:-ORDERS], parts[-ORDERS:]
        values = bleu_of(Matches(correct, guessed, words, reference_words), [BLEU[key] for key in self._bleu])
        return np.concatenate([means, np.moveaxis(values, 0, -1)], axis=-1)


def _complete(column: Sequence[Any] | None) -> bool:
    """Whether there is a value for every image."""
    return column is not None and len(column) > 0 and all(value is not None and value == value for value in column)
