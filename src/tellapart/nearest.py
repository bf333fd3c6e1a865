"""Which rows of one array are nearest to those of another: exact search by blocks of matrix products, in bounded memory.

Arrays only, and numpy only: its threads survive a fork, those of torch and faiss do not, and loaders fork.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

MARGIN = 8
"""Candidates looked at again beyond those asked for: products of one precision may swap what is nearly equal."""

_COLUMNS = 4096  # of the gallery, compared at once: a block of similarities stays in the processor's cache


def nearest_rows(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    *,
    own: np.ndarray | None = None,
    same_above: float = np.inf,
    block: int = 1024,
    advance: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` rows of ``gallery`` with the largest inner product with each query, largest first.

    Candidates are found in the precision of the arrays and put in order in float64; equal products come in the order of
    their rows, whatever the block.

    Args:
        queries: ``[Q, D]``, of unit norm where cosines are meant.
        gallery: ``[G, D]``.
        k: rows per query.
        own: ``[Q]`` the row of ``gallery`` that a query must not find; -1 is none.
        same_above: rows with a larger product are left out.
        block: queries at once; besides the arrays, memory is about ``block * (4096 + 2 k D)`` numbers.
        advance: is called with how many more queries are done.

    Returns:
        ``[Q, k]`` int64 rows and ``[Q, k]`` float64 products; where there are fewer, the rest is -1 and -inf.
    """
    rows, products = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf)
    for start in range(0, len(queries), block):
        here = slice(start, start + block)
        some = queries[here]
        candidates = _candidates(
            some, gallery, min(k + MARGIN, len(gallery)), None if own is None else own[here], same_above
        )
        found = min(k, len(gallery))
        rows[here, :found], products[here, :found] = in_order(some, gallery, candidates, found)
        if advance is not None:
            advance(len(some))
    return rows, products


def in_order(queries: np.ndarray, gallery: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best ``k`` of each query's candidates, by float64 products; equal ones in the order of their rows.

    Args:
        queries: ``[B, D]``.
        gallery: ``[G, D]``.
        candidates: ``[B, M]`` rows of ``gallery``, M at least ``k``, in any order; -1 is none.
        k: how many to keep.

    Returns:
        ``[B, k]`` rows and products, as ``nearest_rows`` returns them.
    """
    # einsum adds up every row in the same way; a matrix product may treat equal rows differently in the last bit
    products = np.einsum("bd,bmd->bm", np.asarray(queries, np.float64), gallery[candidates].astype(np.float64))
    products[candidates < 0] = -np.inf
    order = np.lexsort((candidates, -products))[:, :k]
    products = np.take_along_axis(products, order, axis=1)
    return np.where(np.isneginf(products), -1, np.take_along_axis(candidates, order, axis=1)), products


def _candidates(
    queries: np.ndarray, gallery: np.ndarray, count: int, own: np.ndarray | None, same_above: float
) -> np.ndarray:
    """``[B, count]`` the rows of ``gallery`` with the largest products, in no order; -1 is none."""
    best = np.full((len(queries), count), -np.inf, np.result_type(queries, gallery))
    rows = np.full((len(queries), count), -1, np.int64)
    for start in range(0, len(gallery), _COLUMNS):
        products = queries @ gallery[start : start + _COLUMNS].T
        if own is not None:
            inside = np.flatnonzero((own >= start) & (own < start + products.shape[1]))
            products[inside, own[inside] - start] = -np.inf
        if same_above < np.inf:
            products[products > same_above] = -np.inf
        _improve(best, rows, products, start)
    return rows


def _improve(best: np.ndarray, rows: np.ndarray, products: np.ndarray, start: int) -> None:
    """Let the columns of ``products`` (rows ``start`` and on) in where they beat the worst of ``best``, in place."""
    count, width = best.shape[1], products.shape[1]
    floor = best[:, -1].copy()
    empty = np.flatnonzero(np.isneginf(floor))
    if len(empty) and width > count:  # all would beat nothing: ask for the columns' own best only
        least = np.partition(products[empty], width - count, axis=1)[:, width - count]
        floor[empty] = np.nextafter(least, np.asarray(-np.inf, least.dtype))
    # strictly better: of equal ones, those found before have the lower rows
    query, column = np.divmod(np.flatnonzero(products > floor[:, None]), width)
    if not len(query):
        return
    touched = np.unique(query)
    whose = np.concatenate([np.repeat(touched, count), query])
    values = np.concatenate([best[touched].ravel(), products[query, column]])
    which = np.concatenate([rows[touched].ravel(), column + start])
    order = np.lexsort((which, -values, whose))
    whose, values, which = whose[order], values[order], which[order]
    place = np.arange(len(whose)) - np.searchsorted(whose, whose)
    kept = place < count
    best[whose[kept], place[kept]], rows[whose[kept], place[kept]] = values[kept], which[kept]
