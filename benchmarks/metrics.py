"""CPU time of the n-gram metrics against the tools papers use, on one thread: medians over interleaved runs.

All start from the same words and must give the same numbers, which is checked. The peers are pycocoevalcap and NLTK as
installed and, for the CIDEr-D reward, a plain-Python scorer as training code has them: dictionaries of n-grams, counted
and weighed anew for captions and references at every call.

    python benchmarks/metrics.py [COCO captions json] [--docs benchmarks/README.md]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from tables import spread, write_table

from tellapart.metrics.cider import CiderDScorer, PreparedReferences
from tellapart.metrics.coco import coco_metrics
from tellapart.metrics.diversity import self_bleus
from tellapart.metrics.frequencies import DocumentFrequencies
from tellapart.metrics.pairwise import bleu_distances
from tellapart.metrics.ptb import ptb_tokenize

IMAGES, SAMPLES = 64, 5
References = dict[str, list[str]]


class PlainCiderD:
    """CIDEr-D of a batch in the field's usual way, under fixed document frequencies."""

    def __init__(self, frequencies: dict[tuple[str, ...], int], images: int) -> None:
        self.frequencies = defaultdict(float, {gram: float(count) for gram, count in frequencies.items()})
        self.log_images = np.log(float(images))

    @staticmethod
    def count(text: str) -> dict[tuple[str, ...], int]:
        words, counts = text.split(), defaultdict(int)
        for n in range(1, 5):
            for i in range(len(words) - n + 1):
                counts[tuple(words[i : i + n])] += 1
        return counts

    def vector(self, counts: dict[tuple[str, ...], int]):
        vectors, norms, length = [defaultdict(float) for _ in range(4)], [0.0] * 4, 0
        for gram, count in counts.items():
            frequency = np.log(max(1.0, self.frequencies[gram]))
            n = len(gram) - 1
            vectors[n][gram] = float(count) * (self.log_images - frequency)
            norms[n] += pow(vectors[n][gram], 2)
            if n == 1:
                length += count
        return vectors, [np.sqrt(norm) for norm in norms], length

    @staticmethod
    def similarity(one, other):
        (ours, our_norms, our_length), (theirs, their_norms, their_length) = one, other
        difference, values = float(our_length - their_length), np.array([0.0] * 4)
        for n in range(4):
            for gram in ours[n]:
                values[n] += min(ours[n][gram], theirs[n][gram]) * theirs[n][gram]
            if our_norms[n] != 0 and their_norms[n] != 0:
                values[n] /= our_norms[n] * their_norms[n]
            values[n] *= np.e ** (-(difference**2) / (2 * 6.0**2))
        return values

    def score(self, pairs: list[tuple[str, list[str]]]) -> list[float]:
        scores = []
        for text, references in [(self.count(text), [self.count(r) for r in refs]) for text, refs in pairs]:
            vector, total = self.vector(text), np.array([0.0] * 4)
            for reference in references:
                total += self.similarity(vector, self.vector(reference))
            scores.append(float(np.mean(total) / len(references) * 10.0))
        return scores


def read(path: Path | None) -> References:
    """Tokenised captions of images: of COCO, or of random words with Zipf's frequencies."""
    if path is None:
        rng = random.Random(0)
        words, weights = [f"w{i}" for i in range(4000)], [1 / (i + 1) for i in range(4000)]
        return {
            str(i): [" ".join(rng.choices(words, weights, k=rng.randint(8, 14))) for _ in range(5)] for i in range(2500)
        }
    found: References = {}
    for row in json.loads(path.read_text())["annotations"]:
        found.setdefault(str(row["image_id"]), []).append(row["caption"])
    tokens = iter(ptb_tokenize(caption for captions in found.values() for caption in captions))
    return {name: [next(tokens) for _ in captions] for name, captions in found.items()}


def cpu_seconds(run: Callable[[], object]) -> tuple[float, object]:
    """CPU time of one call, and what it returned."""
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def compare(
    title: str, runs: dict[str, Callable[[], object]], *, pairs: int, times: int = 1, items: int = 0
) -> dict[str, list[float]]:
    """Print the median of each run, all of them taking turns, and the first's over it; all must return the same.

    Args:
        title: what is measured.
        runs: the peer first.
        pairs: how often each is measured.
        times: calls of the others in one measurement, where they are short.
        items: what speed is counted in.

    Returns:
        Name of a run -> its CPU seconds, in the order of the turns.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(pairs):
        results = {}
        for number, (name, run) in enumerate(runs.items()):
            calls = times if number else 1
            spent = [cpu_seconds(run) for _ in range(calls)]
            seconds[name].append(sum(part for part, _ in spent) / calls)
            results[name] = spent[-1][1]
        expected, *others = (value for value in results.values() if value is not None)
        for other in others:
            np.testing.assert_allclose(other, expected, rtol=0, atol=1e-9)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    first = next(iter(medians.values()))
    print(title)
    for name, median in medians.items():
        speed = f"{items / median:11,.0f}/s" if items else ""
        print(f"    {name:44} {1000 * median:9.2f} CPU ms {speed}  {first / median:6.1f}x")
    return seconds


def corpus(references: References, docs: Path | None = None) -> None:
    """BLEU, ROUGE-L and CIDEr of the first caption of each image against the others."""
    said = {name: captions[0] for name, captions in references.items()}
    rest = {name: captions[1:] for name, captions in references.items()}

    def peer() -> list[float]:
        rows = {name: [caption] for name, caption in said.items()}
        bleu, rouge, cider = Bleu(4), Rouge(), Cider()
        return [
            *bleu.compute_score(rest, rows, verbose=0)[0],
            float(rouge.compute_score(rest, rows)[0]),
            float(cider.compute_score(rest, rows)[0]),
        ]

    runs = {"pycocoevalcap": peer, "tellapart": lambda: [*coco_metrics(said, rest, tokenizer=list)[0].values()]}
    title = f"BLEU, ROUGE-L and CIDEr from tokens, {len(said)} images"
    peers, ours = compare(title, runs, pairs=5).values()
    if docs is not None:
        ratio = spread([theirs / mine for theirs, mine in zip(peers, ours, strict=True)], 1)
        cells = (f"{len(said):,}", *(f"{1000 * statistics.median(found):,.0f}" for found in (peers, ours)), ratio)
        head = ["| images | pycocoevalcap, ms | ours, ms | ratio |", "|---|---|---|---|"]
        write_table(docs, "metrics", [*head, f"| {' | '.join(cells)} |"])


def reward(references: References) -> None:
    """CIDEr-D of 64 x 5 captions, a word or two away from a reference."""
    five = {name: captions[:5] for name, captions in references.items()}
    names, rng = list(five)[:IMAGES], random.Random(1)
    frequencies = DocumentFrequencies.from_tokens(five)
    words = [*frequencies.words][:500]
    pairs: list[tuple[str, list[str]]] = []
    for name in names:
        for _ in range(SAMPLES):
            text = rng.choice(five[name]).split() or ["a"]
            text[rng.randrange(len(text))] = rng.choice(words)
            if rng.random() < 0.3:
                text.insert(rng.randrange(len(text)), rng.choice(text))
            pairs.append((" ".join(text), five[name]))
    every = Counter(
        gram for texts in five.values() for gram in dict.fromkeys(g for text in texts for g in PlainCiderD.count(text))
    )
    plain, ours = PlainCiderD(every, frequencies.images), CiderDScorer(frequencies)
    rows = [[text.split() for text in five[name]] for name in names]
    prepared, image = ours.prepare(rows).images(), np.repeat(np.arange(IMAGES), SAMPLES)
    runs = {
        "plain Python": lambda: plain.score(pairs),
        "tellapart, references prepared once": lambda: ours.score(
            [text.split() for text, _ in pairs], image, PreparedReferences.join(prepared)
        ),
        "tellapart, prepared in the call": lambda: ours.score(
            [text.split() for text, _ in pairs], image, ours.prepare([[r.split() for r in five[n]] for n in names])
        ),
    }
    compare(f"CIDEr-D reward, {IMAGES} images x {SAMPLES}", runs, pairs=9, times=10, items=len(pairs))


def pairwise(references: References) -> None:
    """BLEU-3 and BLEU-4 of all ordered pairs of 5 captions an image."""
    rng, chosen = random.Random(0), list(references)[:IMAGES]
    samples = [rng.choices(references[name], k=SAMPLES) for name in chosen]
    numbers: dict[str, int] = {}
    ids = [[np.array([numbers.setdefault(w, len(numbers)) for w in t.split()]) for t in texts] for texts in samples]
    method1, others = SmoothingFunction().method1, ~np.eye(SAMPLES, dtype=bool)

    def symmetric(one_way: np.ndarray) -> np.ndarray:
        return ((one_way + one_way.swapaxes(1, 2)) / 2)[:, others]

    def coco() -> np.ndarray:
        scorer = BleuScorer(n=4)
        for texts in samples:
            for j, one in enumerate(texts):
                for k, other in enumerate(texts):
                    scorer += (one, [other] if j != k else [one])
        _, rows = scorer.compute_score(option="closest")
        return symmetric(2 - np.add(rows[2], rows[3]).reshape(len(samples), SAMPLES, SAMPLES))

    def nltk() -> None:
        for texts in samples:
            words = [text.split() for text in texts]
            for j, one in enumerate(words):
                for k, other in enumerate(words):
                    if j != k:
                        sentence_bleu([other], one, [(1 / 3,) * 3, (1 / 4,) * 4], smoothing_function=method1)

    runs = {
        "pycocoevalcap": coco,
        "NLTK (smooths otherwise: other values)": nltk,
        "tellapart, words": lambda: bleu_distances(samples)[:, others],
        "tellapart, token ids": lambda: bleu_distances(ids)[:, others],
    }
    compare(f"BLEU-3+4 distances, {IMAGES} images x {SAMPLES} captions", runs, pairs=7, times=10, items=IMAGES * 20)


def self_bleu(references: References) -> None:
    """Self-BLEU-2, 3 and 4 of up to 5,000 captions; NLTK's time is taken on some of them and multiplied."""
    captions = [caption for texts in references.values() for caption in texts[:2]][:5000]
    words, method1, some = [caption.split() for caption in captions], SmoothingFunction().method1, range(0, 3)
    peer, expected = cpu_seconds(
        lambda: [
            [
                sentence_bleu(words[:i] + words[i + 1 :], words[i], (1 / n,) * n, smoothing_function=method1)
                for i in some
            ]
            for n in (2, 3, 4)
        ]
    )
    seconds, ours = [], {}
    for _ in range(5):
        spent, ours = cpu_seconds(lambda: self_bleus(captions, (2, 3, 4)))
        seconds.append(spent)
    assert [[ours[n][i] for i in some] for n in (2, 3, 4)] == expected
    print(f"Self-BLEU-2, 3 and 4 of {len(captions)} captions")
    median = statistics.median(seconds)
    print(f"    {'tellapart':44} {1000 * median:9.2f} CPU ms")
    print(f"    {'NLTK, from 3 captions each':44} {peer / len(some) * len(captions):9.0f} CPU s")


def main() -> None:
    """Print every comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", nargs="?", type=Path, help="COCO captions json; else random words")
    parser.add_argument(
        "--docs", type=Path, help="write the table of the metrics into this page, and measure nothing else"
    )
    arguments = parser.parse_args()
    references = read(arguments.captions)
    corpus(references, arguments.docs)
    for measure in () if arguments.docs else (reward, pairwise, self_bleu):
        measure(references)


if __name__ == "__main__":
    main()
