"""CPU time of the CIDEr-D reward, in the call that training makes, against the scorer that SCST code is built on.

    OMP_NUM_THREADS=1 python benchmarks/cider_reward.py [COCO captions json] [--rounds 9] [--docs benchmarks/README.md]

64 images, 5 captions of each, 5 references, as people wrote them. The peer is pycocoevalcap's ``CiderScorer``, the code that training repositories
copied, under the document frequencies of all references as they use it: it receives words, and computes the vectors of
captions and references anew at each call. Ours receives the texts of a rollout and tokenizes them, too. ``kept`` scores images
whose references were seen before, with captions never seen; ``first seen`` prepares the references in the same call. Rounds
are interleaved; the values of both agree to 1e-9, which is checked in each round.
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

from metrics import References, cpu_seconds
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.rewards.reference import CiderD, DocumentFrequencies
from tellapart.types import Batch, Rollout

IMAGES, SAMPLES, CALLS = 64, 5, 20


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
    ratios: dict[str, list[float]] = {"kept": [], "first seen": []}
    seconds: dict[str, list[float]] = {name: [] for name in ("peer", *ratios)}
    kept = CiderD(frequencies)
    for turn in range(rounds):
        chosen = names[turn * IMAGES : (turn + 1) * IMAGES]
        batch = Batch(chosen, [five[name] for name in chosen])
        kept(rollout(batch, captions(five, chosen, frequent, rng)))
        drawn = [captions(five, chosen, frequent, rng) for _ in range(CALLS)]
        targets = [words[name] for name in chosen for _ in range(SAMPLES)]
        pairs = list(zip(ptb_tokenize(drawn[-1], alone=True), targets, strict=True))
        spent, expected = cpu_seconds(lambda pairs=pairs: peer(pairs))
        seconds["peer"].append(spent)
        for name in ratios:
            mine, total, values = kept, 0.0, np.zeros(0)
            for texts in drawn:
                if name == "first seen":
                    kept._prepared.clear()
                captions_now = rollout(batch, texts)
                one, values = cpu_seconds(lambda mine=mine, captions_now=captions_now: mine.score(captions_now))
                total += one
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9)
            seconds[name].append(total / CALLS)
            ratios[name].append(spent / (total / CALLS))
    rows = []
    for name, found in ratios.items():
        spread = f"{statistics.median(found):.0f} [{min(found):.0f}-{max(found):.0f}]"
        rows.append(
            f"| {name} | {1000 * statistics.median(seconds['peer']):.0f} | {1000 * statistics.median(seconds[name]):.2f} | {spread} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("captions", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    o = parser.parse_args()
    for row in measure(read(o.captions), o.rounds):
        print(row)


if __name__ == "__main__":
    main()
