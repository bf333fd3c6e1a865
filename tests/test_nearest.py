"""Exact search against a plain sort of all products."""

import numpy as np
import pytest

from tellapart.nearest import nearest_rows


def slow(queries, gallery, k, own=None, same_above=np.inf):
    """Rows of each query by falling product, equal ones by row, in plain Python."""
    found = []
    for i, query in enumerate(queries.tolist()):
        products = [sum(a * b for a, b in zip(query, row, strict=True)) for row in gallery.tolist()]
        others = [j for j, value in enumerate(products) if (own is None or j != own[i]) and value <= same_above]
        found.append(sorted(others, key=lambda j: (-products[j], j))[:k])
    return found


@pytest.mark.parametrize(("size", "width", "k", "block"), [(200, 5, 5, 7), (40, 3, 60, 16), (300, 2, 3, 1024)])
def test_rows_are_those_of_a_plain_sort_also_among_ties(size, width, k, block, monkeypatch):
    """Small whole numbers: nearly every product occurs many times, and all are exact."""
    monkeypatch.setattr("tellapart.nearest._COLUMNS", 64)
    draw = np.random.default_rng(size)
    gallery = draw.integers(-2, 3, (size, width)).astype(np.float32)
    queries, own = gallery[::3], np.arange(size)[::3]
    rows, products = nearest_rows(queries, gallery, k, own=own, block=block)
    wanted = slow(queries, gallery, k, own)
    assert [row[row >= 0].tolist() for row in rows] == wanted
    there = np.take_along_axis(queries @ gallery.T, np.maximum(rows, 0), axis=1)
    np.testing.assert_array_equal(products, np.where(rows < 0, -np.inf, there))


def test_rows_above_a_product_are_left_out():
    draw = np.random.default_rng(1)
    gallery = draw.integers(-2, 3, (80, 4)).astype(np.float64)
    rows, _ = nearest_rows(gallery, gallery, 4, own=np.full(80, -1), same_above=3.0)
    assert [row[row >= 0].tolist() for row in rows] == slow(gallery, gallery, 4, same_above=3.0)


def test_neither_block_nor_precision_of_the_candidates_shows():
    """In float32 the products differ in their last bits with the block; the result does not."""
    draw = np.random.default_rng(2)
    gallery = draw.standard_normal((800, 64), dtype=np.float32)
    gallery[400:] = gallery[:400] + 1e-7 * draw.standard_normal((400, 64), dtype=np.float32)
    exact = gallery.astype(np.float64) @ gallery.astype(np.float64).T
    np.fill_diagonal(exact, -np.inf)
    wanted = np.argsort(-exact, axis=1, kind="stable")[:, :4]  # the last of each has a near twin that just missed
    for block in (100, 1024):
        rows, _ = nearest_rows(gallery, gallery, 4, own=np.arange(800), block=block)
        np.testing.assert_array_equal(rows, wanted)


def test_progress_adds_up():
    heard = []
    nearest_rows(np.eye(10), np.eye(10), 2, block=4, advance=heard.append)
    assert heard == [4, 4, 2]


def test_more_rows_than_there_are_end_in_none():
    draw = np.random.default_rng(0)
    queries, gallery = draw.standard_normal((3, 4)), draw.standard_normal((5, 4))
    rows, products = nearest_rows(queries, gallery, 5)
    more, further = nearest_rows(queries, gallery, 40)
    np.testing.assert_array_equal(more[:, :5], rows)
    np.testing.assert_array_equal(further[:, :5], products)
    assert (more[:, 5:] == -1).all()
    assert np.isneginf(further[:, 5:]).all()
