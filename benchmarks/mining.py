"""Time, memory and recall of mining: exact search in blocks of matrix products, and FAISS's inverted file index.

    OMP_NUM_THREADS=1 python benchmarks/mining.py exact --size 200000 --queries 8192
    OMP_NUM_THREADS=1 python benchmarks/mining.py faiss --size 200000

Vectors are drawn so that, as with photos, each has some near ones: a direction shared by all, one of ``--clusters`` centres,
and noise of its own in ``--dimensions`` of the ``--width``. Seconds are processor seconds of this process and its children,
which other work on the machine changes little; peak memory is that of each. With ``--queries`` below ``--size`` only these
are searched, and the time for all is extrapolated.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

import numpy as np

from tellapart.listeners.approximate import approximate_rows
from tellapart.nearest import MARGIN, nearest_rows


def vectors(size: int, width: int, clusters: int, dimensions: int, spread: float) -> np.ndarray:
    draw = np.random.default_rng(0)
    rows = np.empty((size, width), np.float32)
    basis = draw.standard_normal((dimensions, width), dtype=np.float32)
    centres = draw.standard_normal((clusters, dimensions), dtype=np.float32)
    shared = 2 * draw.standard_normal(width, dtype=np.float32) * dimensions**0.5
    for start in range(0, size, 10_000):
        part = rows[start : start + 10_000]
        own = spread * draw.standard_normal((len(part), dimensions), dtype=np.float32)
        part[:] = (centres[draw.integers(0, clusters, len(part))] + own) @ basis + shared
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def seconds() -> float:
    return sum(os.times()[:4])


def gigabytes(who: int) -> float:
    return resource.getrusage(who).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=["exact", "faiss"])
    parser.add_argument("--size", type=int, default=200_000)
    parser.add_argument("--queries", type=int, help="all by default")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--clusters", type=int, default=2000)
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--spread", type=float, default=0.5, help="of a cluster, against that of the centres")
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--recall", type=float, default=0.95)
    options = parser.parse_args()
    images = vectors(options.size, options.width, options.clusters, options.dimensions, options.spread)
    before, queries, how = seconds(), options.queries or options.size, {}
    print(f"{options.size} x {options.width}, {images.nbytes / 1e9:.2f} GB, peak so far {gigabytes(0):.2f} GB")

    def exact(some, gallery, k, own):
        return nearest_rows(some, gallery, k, own=own)

    def faiss(some, gallery, k, own):
        result = approximate_rows(some, gallery, k, own, recall=options.recall, advance=lambda _: None)
        if result is None:
            print("FAISS would have to search an eighth of its lists or more")
            return exact(some, gallery, k, own)
        how.update(result[2])
        return result[:2]

    start = time.perf_counter()
    own = np.arange(queries)
    _, similarities = {"exact": exact, "faiss": faiss}[options.engine](
        images[:queries], images, options.k + MARGIN, own
    )
    spent = seconds() - before
    near = similarities[:, : options.k].mean(axis=0).round(3).tolist()
    print(f"{options.engine}: {queries} queries in {spent:.0f} processor seconds, {time.perf_counter() - start:.0f} s")
    if queries < options.size:
        print(
            f"extrapolated to all {options.size} (faiss: at most): {spent * options.size / queries:.0f} processor seconds"
        )
    print(f"peak {gigabytes(resource.RUSAGE_SELF):.2f} GB, of the child {gigabytes(resource.RUSAGE_CHILDREN):.2f} GB")
    print(f"mean similarity at each rank {near}", how or "")


if __name__ == "__main__":
    main()
