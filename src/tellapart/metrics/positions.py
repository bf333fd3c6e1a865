"""N-grams compared place by place, for many pairs of captions at once and without a dictionary.

For a pair of captions, ``same[i, j]`` tells whether the n-gram that begins at word i of the one equals the n-gram that
begins at word j of the other. For n = 1 that is a comparison of words; the table for n + 1 is the table for n and the
same table shifted by one along its diagonal. Sums over a side of the table are the counts every n-gram metric needs:
how often the caption's n-gram occurs in the reference, and the other way round. Pairs lie along the last axis, so that
each step is one pass over contiguous bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from tellapart.metrics.ngrams import Numbered

CELLS = 1 << 18
"""Cells of a table worked on at once: two tables of bytes stay within a core's cache."""

LONG = 2000
"""Words of a caption whose tables would take more time and memory than sorting its n-grams."""


class Scratch:
    """Two buffers for the tables, kept from one use to the next: fresh memory costs more than the comparison itself."""

    def __init__(self) -> None:
        self._free: list[tuple[np.ndarray, np.ndarray]] = []

    def borrow(self, cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays of at least ``cells`` bytes; a second thread gets its own."""
        pair = self._free.pop() if self._free else None
        if pair is None or len(pair[0]) < cells:
            pair = np.empty(cells, np.bool_), np.empty(cells, np.bool_)
        return pair

    def give_back(self, pair: tuple[np.ndarray, np.ndarray]) -> None:
        """Keep the buffers for the next use."""
        if len(pair[0]) <= 4 * CELLS:
            self._free.append(pair)


def narrow(*words: np.ndarray) -> list[np.ndarray]:
    """The same word numbers in the smallest type that can hold them and the ends: half the work or less."""
    top = max(int(numbers.max(initial=0)) for numbers in words)
    return [numbers.astype(np.uint16 if top < 0xFFFE else np.int32) for numbers in words]


def columns(captions: Numbered) -> tuple[np.ndarray, np.ndarray]:
    """Captions as columns of a table, and the position (row by row) of each word.

    Args:
        captions: words of ``narrow``.

    Returns:
        ``[longest, N]``, the left side of a comparison, in which the ends are followed by a number that no word has; and
        ``[T]``.
    """
    lengths, count = captions.lengths, len(captions.lengths)
    rows = np.arange(len(captions.words)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = rows * count + np.repeat(np.arange(count), lengths)
    table = np.full((int(lengths.max(initial=0)), count), np.iinfo(captions.words.dtype).max, captions.words.dtype)
    table.reshape(-1)[places] = captions.words
    return table, places


def other_side(table: np.ndarray) -> np.ndarray:
    """The same columns for the right side of a comparison: their ends are unlike those of the left."""
    end = np.iinfo(table.dtype).max
    return np.where(table == end, table.dtype.type(end - 1), table)


def same_ngrams(left: np.ndarray, right: np.ndarray, orders: int, scratch: Scratch) -> Iterator[np.ndarray]:
    """For each order from 1 on the table ``same``; it is overwritten when the one after the next is asked for.

    Args:
        left: ``[I, ...]``, of ``columns``.
        right: ``[J, ...]``, of ``other_side``; the axes after I and J are broadcast.
        orders: longest n-gram.
        scratch: lends the memory.

    Yields:
        ``[I - n + 1, J - n + 1, ...]`` of bytes 0 and 1 (no places where a side is too short).
    """
    columns = np.broadcast_shapes(left.shape[1:], right.shape[1:])
    shape = (len(left), len(right), *columns)
    buffers = scratch.borrow(prod(shape))
    same = buffers[0][: prod(shape)].reshape(shape)
    np.equal(left[:, None], right[None], out=same)
    yield same.view(np.uint8)
    for order in range(2, orders + 1):
        shape = (max(shape[0] - 1, 0), max(shape[1] - 1, 0), *columns)
        longer = buffers[(order - 1) % 2][: prod(shape)].reshape(shape)
        np.logical_and(same[:-1, :-1], same[1:, 1:], out=longer)
        same = longer
        yield same.view(np.uint8)
    scratch.give_back(buffers)


def count_dtype(longest: int) -> type[np.unsignedinteger]:
    """The smallest type that counts up to ``longest``."""
    return np.uint8 if longest < 256 else np.uint32


def chunks(cells: np.ndarray) -> Iterator[slice]:
    """Runs of columns to be compared together: not too many, and with little padding if similar columns are neighbours.

    Args:
        cells: ``[N]``, size of the tables of each column, the largest first.
    """
    start = 0
    while start < len(cells):
        stop = start + max(CELLS // max(int(cells[start]), 1), 1)
        yield slice(start, stop)
        start = stop


def own_counts(captions: Numbered, orders: int, scratch: Scratch, *, earlier: bool = False) -> np.ndarray:
    """``[orders, T]``: how often the n-gram that begins at each word occurs in its caption; 0 where it would run over.

    Args:
        captions: numbered words.
        orders: longest n-gram.
        scratch: lends the memory.
        earlier: count only the words before this one.
    """
    longest = int(captions.lengths.max(initial=0))
    captions = Numbered(narrow(captions.words)[0], captions.lengths)
    counts = np.zeros((orders, len(captions.words)), count_dtype(longest))
    if longest**2 * len(captions.lengths) <= 4 * CELLS:
        left, places = columns(captions)
        return own_tables(left, orders, scratch, earlier=earlier).reshape(orders, -1).take(places, axis=1)
    for caption in np.flatnonzero(captions.lengths > LONG):
        places = captions.places(np.array([caption]))
        counts[:, places] = _sorted_counts(captions.words[places], orders, earlier=earlier)
    order = np.argsort(-captions.lengths, kind="stable")
    order = order[captions.lengths[order] <= LONG]
    for part in chunks(captions.lengths[order] ** 2):
        left, places = columns(captions.select(order[part]))
        tables = own_tables(left, orders, scratch, earlier=earlier).reshape(orders, -1)
        counts[:, captions.places(order[part])] = tables.take(places, axis=1)
    return counts


def _sorted_counts(words: np.ndarray, orders: int, *, earlier: bool) -> np.ndarray:
    """``[orders, T]``: ``own_counts`` of one caption, by sorting its n-grams."""
    counts = np.zeros((orders, len(words)), np.int64)
    _, firsts = np.unique(words, return_inverse=True)
    grams = firsts
    for n in range(orders):
        if n:
            pairs = grams[: len(words) - n].astype(np.int64) * len(words) + firsts[n:]
            _, grams = np.unique(pairs, return_inverse=True)
        sizes = np.bincount(grams)
        counts[n, : len(grams)] = sizes[grams]
        if earlier:
            order = np.argsort(grams, kind="stable")
            counts[n, order] = np.arange(len(grams)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return counts


def own_tables(left: np.ndarray, orders: int, scratch: Scratch, *, earlier: bool = False) -> np.ndarray:
    """``[orders, longest, N]``: ``own_counts`` of captions that are columns already."""
    counts = np.zeros((orders, *left.shape), count_dtype(len(left)))
    for n, same in enumerate(same_ngrams(left, other_side(left), orders, scratch)):
        if earlier and not n:
            for i, row in enumerate(same):
                row[: i + 1] = 0  # the longer ones inherit it
        same.sum(axis=0, dtype=counts.dtype, out=counts[n, : len(same)])
    return counts
