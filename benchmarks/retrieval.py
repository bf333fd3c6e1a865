"""Time and memory of retrieval ranks in both directions, where the full matrix would not fit.

    python benchmarks/retrieval.py [--size 100000] [--width 512]

Peak memory is the process's own, embeddings included.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from tellapart.metrics.retrieval import hard_gallery, nearest_images, retrieval_metrics, retrieval_ranks


def unit(draw: np.random.Generator, size: int, width: int) -> np.ndarray:
    rows = draw.standard_normal((size, width), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    images = unit(draw, options.size, options.width)
    texts = images + 0.2 * draw.standard_normal(images.shape, dtype=np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    start = time.perf_counter()
    t2i, i2t = retrieval_ranks(texts, images)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{options.size} x {options.size} x {options.width}: {seconds:.0f} s, peak {peak:.2f} GB")
    print("caption to image", retrieval_metrics(t2i), "image to caption", retrieval_metrics(i2t))
    few = min(options.size, 5000)
    start = time.perf_counter()
    _, confused = hard_gallery(texts[:few], images[:few], nearest_images(images[:few], 10))
    wrong = sum(map(bool, confused))
    print(f"hard galleries of 10 among {few}: {time.perf_counter() - start:.1f} s, {wrong} captions confuse some image")


if __name__ == "__main__":
    main()
