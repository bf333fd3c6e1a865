"""CPU time of the CIDEr-D reward, in the call that training makes, against the scorer that SCST code is built on.

    OMP_NUM_THREADS=1 python benchmarks/cider_reward.py COCO_CAPTIONS_JSON [--rounds 9] [--docs benchmarks/README.md]

64 images, 5 captions of each, 5 references, as people wrote them; in each caption a word or two is replaced. The peer is
pycocoevalcap's ``CiderScorer``, the code that training repositories carry a copy of, under the document frequencies of all
references. It gets words, and computes the vectors of captions and references anew at each call. Ours gets the texts of a
rollout and finds their words, too. ``kept`` scores new captions of images whose references were seen before; ``first seen``
prepares the references in the call, after ten other batches. Rounds are interleaved, and both agree to 1e-9 in each.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from pycocoevalcap.cider.cider_scorer import CiderScorer, precook
from tables import spread, write_table

from metrics import References, cpu_seconds
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.rewards.reference import CiderD, DocumentFrequencies
from tellapart.types import Batch, Rollout

IMAGES, SAMPLES, CALLS, WARM = 64, 5, 21, 10


def read(path: Path) -> References:
    """Five raw captions of each image."""
    found: References = {}
    for row in json.loads(path.read_text())["annotations"]:
        found.setdefault(str(row["image_id"]), []).append(row["caption"])
    return {name: texts[:5] for name, texts in found.items()}


def captions(references: References, names: list[str], words: list[str], rng: random.Random) -> list[str]:
    """Five captions of each image, a word or two away from one of its references, without the final dot."""
    found = []
    for name in names:
        for _ in range(SAMPLES):
            text = rng.choice(references[name]).strip().rstrip(".").split() or ["a"]
            text[rng.randrange(len(text))] = rng.choice(words)
            if rng.random() < 0.3:
                text.insert(rng.randrange(len(text)), rng.choice(text))
            found.append(" ".join(text))
    return found


class _Corpus(list[object]):
    """The peer takes the number of images of the corpus from the length of this list."""

    def __init__(self, images: int) -> None:
        super().__init__()
        self.images = images

    def __len__(self) -> int:
        return self.images


class Peer:
    """pycocoevalcap's scorer with fixed document frequencies.

    Args:
        references: those of all images, as words.
    """

    def __init__(self, references: References) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        for texts in references.values():
            self.counts.update({gram for text in texts for gram in precook(text)})
        self.images = len(references)

    def __call__(self, pairs: list[tuple[str, list[str]]]) -> np.ndarray:
        """``[N]``, the score of each caption with its references."""
        scorer = CiderScorer()
        scorer.document_frequency, scorer.crefs = self.counts, _Corpus(self.images)
        for pair in pairs:
            scorer += pair
        return np.array(scorer.compute_cider())


def rollout(batch: Batch, texts: list[str]) -> Rollout:
    """The captions as they come from a captioner."""
    image = torch.arange(len(batch)).repeat_interleave(SAMPLES)
    tokens = torch.zeros(len(texts), 1, dtype=torch.long)
    return Rollout(batch, image, texts, tokens, tokens == 0, torch.ones(len(texts), dtype=torch.bool))


def measure(five: References, rounds: int) -> list[str]:
    """The rows of the table."""
    words = {name: ptb_tokenize(texts, alone=True) for name, texts in five.items()}
    frequencies, peer, rng = DocumentFrequencies.from_tokens(words), Peer(words), random.Random(1)
    names, frequent = [*five], [word for word in [*frequencies.words][:500] if word.isalpha()]
    seconds: dict[str, list[float]] = {"peer": [], "kept": [], "first seen": []}
    reward = CiderD(frequencies)

    def timed(texts: list[str], batch: Batch) -> tuple[float, np.ndarray]:
        drawn = rollout(batch, texts)
        return cpu_seconds(lambda: reward.score(drawn))

    for turn in range(-WARM, rounds):
        chosen = names[(turn + WARM) * IMAGES : (turn + WARM + 1) * IMAGES]
        batch = Batch(chosen, [five[name] for name in chosen])
        drawn = [captions(five, chosen, frequent, rng) for _ in range(CALLS)]
        first, values = timed(drawn[0], batch)
        if turn < 0:
            continue
        targets = [words[name] for name in chosen for _ in range(SAMPLES)]
        pairs = list(zip(ptb_tokenize(drawn[0], alone=True), targets, strict=True))
        spent, expected = cpu_seconds(lambda pairs=pairs: peer(pairs))
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(timed(drawn[0], batch)[1], expected, rtol=0, atol=1e-9)
        seconds["peer"].append(spent)
        seconds["first seen"].append(first)
        seconds["kept"].append(statistics.mean(timed(texts, batch)[0] for texts in drawn[1:]))
    peers = seconds.pop("peer")
    lines = ["| references | pycocoevalcap, ms | ours, ms | ratio |", "|---|---|---|---|"]
    for name, found in seconds.items():
        cells = [name, f"{1000 * statistics.median(peers):.0f}", f"{1000 * statistics.median(found):.2f}"]
        ratios = [peer / own for peer, own in zip(peers, found, strict=True)]
        lines.append(f"| {' | '.join([*cells, spread(ratios)])} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", type=Path, help="COCO captions json")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    lines = measure(read(options.captions), options.rounds)
    print(*lines, sep="\n")
    if options.docs:
        write_table(options.docs, "cider reward", lines)


if __name__ == "__main__":
    main()
