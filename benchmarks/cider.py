"""CPU time of CIDEr-D as a reward, against pycocoevalcap's scorer: 64 images x 5 captions, all with 5 references.

Both get the same tokenised captions. pycocoevalcap computes document frequencies anew at every call; here, as in
training, they are counted once, and the references' vectors are prepared once ("cached") or inside the call ("per
call").

    python benchmarks/cider.py [COCO captions json]
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pycocoevalcap.cider.cider_scorer import CiderScorer

from tellapart.metrics.cider import CiderDScorer, DocumentFrequencies
from tellapart.metrics.tokenizer import tokenize

IMAGES, SAMPLES, PAIRS = 64, 5, 9


def references(path: Path | None) -> dict[str, list[str]]:
    """Five tokenised captions an image: of COCO, or of random words with Zipf's frequencies."""
    if path is None:
        rng = random.Random(0)
        words, weights = [f"w{i}" for i in range(4000)], [1 / (i + 1) for i in range(4000)]
        return {str(i): [" ".join(rng.choices(words, weights, k=10)) for _ in range(5)] for i in range(2500)}
    found: dict[str, list[str]] = {}
    for row in json.loads(path.read_text())["annotations"]:
        found.setdefault(str(row["image_id"]), []).append(row["caption"])
    return {name: tokenize(captions[:5]) for name, captions in found.items()}


class OfCorpus(list):
    """The peer takes the number of images from the length of its list of references; this one tells the corpus'."""

    images = 0

    def __len__(self) -> int:
        return self.images


def cpu_seconds(run: Callable[[], list[float]]) -> tuple[float, list[float]]:
    """CPU time of one call, and what it returned."""
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def main() -> None:
    """Print medians over interleaved pairs, and the ratios."""
    corpus = references(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    names, rng = list(corpus)[:IMAGES], random.Random(1)
    pairs = []
    for name in names:
        for _ in range(SAMPLES):
            words = rng.choice(corpus[name]).split()
            words[rng.randrange(len(words))] = "something"
            pairs.append((name, " ".join(words)))
    frequencies = DocumentFrequencies.from_tokens(corpus)
    ours = CiderDScorer(frequencies)
    prepared = {name: ours.prepare([text.split() for text in corpus[name]]) for name in names}

    def cached() -> list[float]:
        return [ours.score(text.split(), prepared[name]) for name, text in pairs]

    def per_call() -> list[float]:
        fresh = {name: ours.prepare([text.split() for text in corpus[name]]) for name in names}
        return [ours.score(text.split(), fresh[name]) for name, text in pairs]

    def peer() -> list[float]:
        scorer = CiderScorer()
        for name, text in pairs:
            scorer += (text, corpus[name])
        # its own entry point would count the document frequencies of this batch instead
        scorer.document_frequency.update(frequencies.counts)
        scorer.crefs = OfCorpus(scorer.crefs)
        scorer.crefs.images = len(corpus)
        return [float(value) for value in scorer.compute_cider()]

    times: dict[str, list[float]] = {"pycocoevalcap": [], "cached": [], "per call": []}
    for _ in range(PAIRS):
        for label, run in (("pycocoevalcap", peer), ("cached", cached), ("per call", per_call)):
            seconds, values = cpu_seconds(run)
            times[label].append(seconds)
            if label == "pycocoevalcap":
                expected = values
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9)
    median = {label: statistics.median(values) for label, values in times.items()}
    for label, seconds in median.items():
        print(
            f"{label:14} {1000 * seconds:7.1f} CPU ms  {len(pairs) / seconds:9.0f} captions/s  "
            f"{median['pycocoevalcap'] / seconds:5.1f}x"
        )


if __name__ == "__main__":
    main()
