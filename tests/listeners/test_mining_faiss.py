"""The approximate engine: what it finds, when it gives up, and that this process may fork afterwards."""

from __future__ import annotations

import multiprocessing
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from listeners.test_mining import Vectors, images_of, unit
from tellapart.errors import UsageError
from tellapart.listeners import approximate, mining
from tellapart.listeners.mining import mine

needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="faiss-cpu is not installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))


def clustered(size=3000, copies=50):
    """A hundred clusters, and of the first images each a copy that is a little off."""
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((100, 16))
    vectors = unit(centres[draw.integers(0, 100, size)] + 0.3 * draw.standard_normal((size, 16)))
    vectors[-copies:] = unit(vectors[:copies] + 1e-4 * draw.standard_normal((copies, 16)))
    contents = [str(i) for i in range(size)]
    return Vectors(dict(zip(contents, vectors, strict=True))), images_of(contents)


def multiply() -> None:
    """What loaders' processes do: parallel arithmetic."""
    torch.set_num_threads(2)
    assert torch.isfinite(torch.randn(600, 600) @ torch.randn(600, 600)).all()
    assert np.isfinite(np.random.default_rng(0).random((600, 600)) @ np.ones((600, 600))).all()


def mine_and_fork() -> None:
    """Search with FAISS, then do parallel arithmetic in a forked child."""
    torch.set_num_threads(1)
    listener, images = clustered(1500, 10)
    assert mine(listener, images, 5, engine="faiss").about["engine"] == "faiss"
    assert "faiss" not in sys.modules
    child = multiprocessing.get_context("fork").Process(target=multiply, daemon=True)
    child.start()
    child.join(100)
    sys.exit(child.exitcode != 0)


@needs_faiss
def test_a_process_that_searched_can_fork():
    """In a process of its own: in one that has ever computed with two threads, a forked child hangs whatever we do."""
    child = multiprocessing.get_context("spawn").Process(target=mine_and_fork)
    child.start()
    child.join(150)
    assert child.exitcode == 0


@needs_faiss
def test_faiss_finds_nearly_all(monkeypatch):
    torch.set_num_threads(1)
    listener, images = clustered()
    exact = mine(listener, images, 5, engine="exact")
    monkeypatch.setattr(mining, "nearest_rows", None)  # exact search would show
    found = mine(listener, images, 5, engine="faiss")
    assert "faiss" not in sys.modules
    both = [len(set(a) & set(b)) / 5 for a, b in zip(exact.of(exact.ids), found.of(found.ids), strict=True)]
    assert np.mean(both) >= 0.95
    assert (found.about["engine"], found.about["lists"]) == ("faiss", 128)
    assert found.about["recall"] >= 0.95
    assert found.about["same_embedding"] == 50
    copy_of = {f"image-{3000 - 50 + i}": f"image-{i}" for i in range(50)}
    for name, near in zip(found.ids, found.of(found.ids), strict=True):
        assert name not in near
        assert not copy_of.keys() & set(near)  # of two copies, the first
        assert copy_of.get(name) not in near


@needs_faiss
def test_where_faiss_would_have_to_look_everywhere_the_search_is_exact():
    """Without clusters neighbours lie in all lists."""
    vectors = unit(np.random.default_rng(1).standard_normal((1200, 64)))
    listener = Vectors({str(i): row for i, row in enumerate(vectors)})
    images = images_of([str(i) for i in range(1200)])
    found, exact = (mine(listener, images, 5, engine=engine) for engine in ("faiss", "exact"))
    assert found.about["engine"] == "exact"
    assert found.of(found.ids) == exact.of(exact.ids)


@needs_faiss
def test_of_few_images_the_search_is_exact():
    """An index has more lists than there are images to train it on, which FAISS refuses."""
    vectors = unit(np.random.default_rng(1).standard_normal((3, 8)))
    listener, images = Vectors({str(i): row for i, row in enumerate(vectors)}), images_of(["0", "1", "2"])
    found, exact = (mine(listener, images, 1, engine=engine) for engine in ("faiss", "exact"))
    assert found.of(found.ids) == exact.of(exact.ids)


@needs_faiss
def test_a_search_that_dies_is_told(monkeypatch):
    listener, images = clustered(300, 1)
    monkeypatch.setattr(approximate.sys, "executable", "false")
    with pytest.raises(UsageError, match="the FAISS search ended with code 1"):
        mine(listener, images, 5, engine="faiss")


def test_large_collections_are_searched_by_faiss_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(mining, "EXACT_UP_TO", 100)
    monkeypatch.setattr(mining, "find_spec", lambda name: object())
    assert mining._engine("auto", 100) == "exact"
    assert mining._engine("auto", 101) == "faiss"
    assert mining._engine("exact", 101) == "exact"
    monkeypatch.setattr(mining, "find_spec", lambda name: None)
    assert mining._engine("auto", 101) == "exact"
    monkeypatch.setattr(approximate, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs faiss-cpu"):
        mining._engine("faiss", 10)
