"""Approximate nearest neighbours by FAISS's inverted file index (Johnson et al., 2019), in a process of its own.

A process that has searched with FAISS must not fork: the child would hang in its first parallel loop, and loaders fork.
So this module is also a program, ``python -m tellapart.listeners.approximate FOLDER``, which maps the arrays that are in
the folder, tells how far it is on standard output, and leaves the rows it found there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from math import log2, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np

from tellapart.errors import UsageError
from tellapart.files import cache_dir
from tellapart.nearest import MARGIN, in_order, nearest_rows

_BLOCK = 1024
_SAMPLE = 500  # queries by which recall is measured
_FIRST_PROBE = 8
_POINTS_A_LIST = 64  # that k-means is trained on; FAISS asks for 39 to 256
_FEWEST = 256  # vectors below which an index has too few to be trained on
_MOST_PROBED = 8  # lists are searched vector by vector, so that from an eighth of them on exact products are as fast


def require_faiss() -> None:
    """Raise where it is not installed.

    Raises:
        UsageError: naming what to install.
    """
    if find_spec("faiss") is None:
        raise UsageError("engine 'faiss' needs faiss-cpu: pip install 'tellapart[faiss]', or choose the engine exact.")


def approximate_rows(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    own: np.ndarray,
    *,
    recall: float,
    advance: Callable[[int], None],
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]] | None:
    """Most of the ``k`` rows of ``gallery`` nearest to each query, in order of their float64 products.

    The number of lists that are searched is doubled until at least ``recall`` of the true neighbours of 500 queries are
    found. Arguments and the first two results are those of ``nearest_rows``. The index holds 8 bits
    a number; what it finds is put in order by the vectors themselves.

    Args:
        queries: ``[Q, D]`` float32.
        gallery: ``[G, D]`` float32; it is written to the cache folder's disk while the search runs.
        k: rows per query.
        own: ``[Q]`` the row that a query must not find; -1 is none.
        recall: share (0 to 1) of the true neighbours to be found.
        advance: is called with how many more queries are done.

    Returns:
        Rows, products, and the figures ``recall`` (measured), ``nprobe`` and ``lists``; None where exact search is as fast: with
        few vectors, or with too many lists to be searched.

    Raises:
        UsageError: FAISS is not installed, or its process died.
    """
    require_faiss()
    if len(gallery) < _FEWEST:
        return None
    cache_dir().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache_dir(), prefix="faiss-") as name:
        folder = Path(name)
        np.save(folder / "gallery.npy", gallery)
        if queries is not gallery:
            np.save(folder / "queries.npy", queries)
        np.save(folder / "own.npy", own)
        (folder / "order.json").write_text(json.dumps({"k": k, "recall": recall}))
        figures = _in_child(folder, advance)
        if not (folder / "candidates.npy").is_file():
            return None
        candidates = np.load(folder / "candidates.npy")
    rows, products = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf)
    for start in range(0, len(queries), _BLOCK):
        here = slice(start, start + _BLOCK)
        rows[here], products[here] = in_order(queries[here], gallery, candidates[here], k)
    return rows, products, figures


def _in_child(folder: Path, advance: Callable[[int], None]) -> dict[str, Any]:
    """Run this module on the folder; the figures it tells at the end."""
    command = [sys.executable, "-m", __name__, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    figures: dict[str, Any] = {}
    with TemporaryFile("w+") as complaints:
        child = subprocess.Popen(  # noqa: S603  # this program
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                told = json.loads(line)
                advance(told.pop("done", 0))
                figures |= told
            code = child.wait()
        finally:
            child.kill()
            child.wait()
        if code:
            complaints.seek(0)
            said = (complaints.read().strip().splitlines() or ["perhaps for want of memory"])[-1]
            raise UsageError(f"the FAISS search ended with code {code} ({said}): choose the engine exact.")
    return figures


def _tell(**figures: Any) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def main(folder: Path) -> None:
    """The program: search what the folder holds."""
    import faiss

    order = json.loads((folder / "order.json").read_text())
    gallery = np.load(folder / "gallery.npy", mmap_mode="r")
    apart = folder / "queries.npy"
    queries = np.load(apart, mmap_mode="r") if apart.is_file() else gallery
    own = np.load(folder / "own.npy")
    width = order["k"] + MARGIN + 1  # one for the query itself
    index = _index(faiss, gallery)
    sample = np.linspace(0, len(queries) - 1, min(_SAMPLE, len(queries))).astype(np.int64)
    truth, _ = nearest_rows(queries[sample], gallery, order["k"], own=own[sample])
    index.nprobe = min(_FIRST_PROBE, index.nlist)
    while True:
        rows, _ = in_order(queries[sample], gallery, _search(index, queries[sample], own[sample], width), order["k"])
        recall = _recall(truth, rows)
        if recall >= order["recall"]:
            break
        if index.nprobe * 2 * _MOST_PROBED > index.nlist:
            return
        index.nprobe *= 2
    _tell(recall=recall, nprobe=index.nprobe, lists=index.nlist)
    candidates = np.empty((len(queries), width), np.int64)
    for start in range(0, len(queries), _BLOCK):
        here = slice(start, start + _BLOCK)
        candidates[here] = _search(index, queries[here], own[here], width)
        _tell(done=len(candidates[here]))
    np.save(folder / "candidates.npy", candidates)


def _recall(truth: np.ndarray, rows: np.ndarray) -> float:
    """Share of the true rows, -1 aside, that were found."""
    pairs = [(set(whole[whole >= 0].tolist()), set(row.tolist())) for whole, row in zip(truth, rows, strict=True)]
    return sum(len(whole & row) for whole, row in pairs) / max(sum(len(whole) for whole, _ in pairs), 1)


def _index(faiss: Any, gallery: np.ndarray) -> Any:
    """An index of vectors of 8 bits a number, filled in blocks."""
    lists = 2 ** round(log2(2 * sqrt(len(gallery))))
    index = faiss.index_factory(gallery.shape[1], f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(np.ascontiguousarray(gallery[:: max(1, len(gallery) // (_POINTS_A_LIST * lists))]))
    for start in range(0, len(gallery), _BLOCK):
        index.add(np.ascontiguousarray(gallery[start : start + _BLOCK]))
    return index


def _search(index: Any, queries: np.ndarray, own: np.ndarray, width: int) -> np.ndarray:
    """``[Q, width]`` rows, -1 where there are fewer and for the query's own."""
    _, rows = index.search(np.ascontiguousarray(queries), width)
    return np.where(rows == own[:, None], -1, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
