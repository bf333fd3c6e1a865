"""How the metrics of a set follow from rows of its images: what a bootstrap computes again for every draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

SHARES = {
    "CHAIRi": ("objects_hallucinated", "objects_named"),
    "object_recall": ("objects_recalled", "objects_annotated"),
}
"""Metrics in percent -> the columns whose sums over a set they are the quotient of; 0 where the second sum is."""


def bleu_columns(matches: Matches) -> dict[str, Sequence[int]]:
    """The columns of ``MATCHES`` and ``LENGTHS``, one value per image."""
    columns = (*matches.correct, matches.lengths, matches.reference_lengths)
    return dict(zip((*MATCHES, *LENGTHS), map(Numbers, columns), strict=True))


def perplexity_of(nll: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """``exp(nll / tokens)`` of sums over a set, NaN where it has no tokens."""
    return np.exp(_quotient(np.stack([nll, tokens]).astype(np.float64), where_none=np.nan))


@dataclass(frozen=True)
class _Part:
    """Metrics that are computed together.

    ``columns`` are what is summed over images, ``[n]`` each; ``values`` turns sums ``[c, ...]`` into metrics ``[k, ...]``.
    """

    keys: list[str]
    columns: Sequence[Any]
    values: Callable[[np.ndarray], np.ndarray]


class Aggregate:
    """Metrics that rows of images determine: averages of a column over the images that have a value, quotients of two columns,
    and the BLEU, METEOR and perplexity of the set.

    Args:
        metrics: names of metrics.
        per_image: column -> one value per image, None where undefined.

    Attributes:
        keys: the metrics among those named that can be computed so.
        rows: ``[n, m]``, what has to be summed over images.
    """

    def __init__(self, metrics: Sequence[str], per_image: Mapping[str, Sequence[Any]]) -> None:
        images = len(next(iter(per_image.values()), ()))
        averages = [key for key in metrics if _complete(per_image.get(key))]
        others = [key for key in metrics if key not in averages]
        self._parts = [_Part(averages, [per_image[key] for key in averages], lambda sums: sums / images)]
        self._parts += _of_sets(others, per_image)
        known = {key for part in self._parts for key in part.keys}
        some = [key for key in others if key not in known and _numbers_of_some(per_image.get(key))]
        self._parts += [_average_of_some(key, per_image[key]) for key in some]
        self.keys = [key for part in self._parts for key in part.keys]
        columns = [column for part in self._parts for column in part.columns]
        self.rows = np.empty((images, len(columns)))
        for place, column in enumerate(columns):
            self.rows[:, place] = column

    def __call__(self, sums: np.ndarray) -> np.ndarray:
        """``[..., k]``, the metrics of ``keys``, from the sums ``[..., m]`` of rows of as many images as there are; NaN where
        they do not determine one."""
        left, values = np.moveaxis(sums, -1, 0), list[np.ndarray]()
        for part in self._parts:
            own, left = np.split(left, [len(part.columns)])
            values.append(part.values(own))
        return np.moveaxis(np.concatenate(values), 0, -1)


def _of_sets(metrics: Sequence[str], per_image: Mapping[str, Sequence[Any]]) -> Iterator[_Part]:
    """The metrics among these that images do not average to."""

    def columns(names: Sequence[str]) -> list[Sequence[Any]] | None:
        return [per_image[name] for name in names] if all(_complete(per_image.get(name)) for name in names) else None

    bleu = [key for key in metrics if key in BLEU]
    if bleu and (found := columns((*MATCHES, *LENGTHS))) is not None:
        guessed = guesses(np.asarray(found[ORDERS], np.float64), ORDERS)
        yield _Part(bleu, [*found, *guessed], partial(_bleu, orders=[BLEU[key] for key in bleu]))
    if METEOR in metrics and (found := columns(STATISTICS)) is not None:
        yield _Part([METEOR], found, lambda sums: meteor_of(np.moveaxis(sums, 0, -1))[None])
    if PERPLEXITY in metrics and (found := columns(SURPRISE)) is not None:
        yield _Part([PERPLEXITY], found, lambda sums: perplexity_of(*sums)[None])
    for key, names in SHARES.items():
        if key in metrics and (found := columns(names)) is not None:
            yield _Part([key], found, lambda sums: 100.0 * _quotient(sums, where_none=0.0)[None])


def _bleu(sums: np.ndarray, orders: Sequence[int]) -> np.ndarray:
    correct, (words, reference_words), guessed = np.split(sums, [ORDERS, ORDERS + len(LENGTHS)])
    return bleu_of(Matches(correct, guessed, words, reference_words), orders)


def _average_of_some(key: str, column: Sequence[Any]) -> _Part:
    values = np.array(column, np.float64)
    return _Part(
        [key], [np.nan_to_num(values), ~np.isnan(values)], lambda sums: _quotient(sums, where_none=np.nan)[None]
    )


def _quotient(sums: np.ndarray, where_none: float) -> np.ndarray:
    """``[...]``, the first of two sums by the second."""
    total, count = sums
    return np.divide(total, count, out=np.full(total.shape, where_none), where=count > 0)


def _complete(column: Sequence[Any] | None) -> bool:
    """Whether there is a value for every image."""
    if isinstance(column, Numbers):
        return len(column) > 0 and not np.isnan(column.array).any()
    return column is not None and len(column) > 0 and all(value is not None and value == value for value in column)


def _numbers_of_some(column: Sequence[Any] | None) -> bool:
    """Whether there are numbers, of some images at least."""
    values = [] if column is None else [value for value in column if value is not None]
    return all(isinstance(value, (int, float)) for value in values) and any(value == value for value in values)
