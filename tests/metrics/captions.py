"""Odd captions, and what the reference tool says of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

WORDS = ["a", "red", "dog", "on", "the", "big", "wave", "and", "board", "22\u00a03/4", "o'clock"]


def odd_captions(images: int, seed: int, *, references: int = 5) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Captions of few words, so that n-grams repeat within and between captions; empty ones, single words, one word
    many times, captions much longer than their references, and words that no reference has."""
    rng = random.Random(seed)

    def caption() -> str:
        kind = rng.random()
        if kind < 0.1:
            return ""
        if kind < 0.2:
            return rng.choice(WORDS)
        if kind < 0.25:
            return " ".join([rng.choice(WORDS)] * rng.randint(2, 30))
        return " ".join(rng.choices(WORDS, k=rng.randint(2, 14)))

    targets = {f"i{i}": [caption() for _ in range(rng.randint(1, references))] for i in range(images)}
    said = {}
    for name, texts in targets.items():
        odd = [*texts, caption(), f"{caption()} unseen words unseen words", " ".join(rng.choices(WORDS, k=60))]
        said[name] = rng.choice(odd)
    return said, targets


def peer(captions: dict[str, str], references: dict[str, list[str]]) -> dict[str, tuple[float, list[float]]]:
    """pycocoevalcap's value for the corpus and for each image, by metric; its CIDEr fails if no reference has a word."""
    said = {name: [caption] for name, caption in captions.items()}
    bleu, bleus = Bleu(4).compute_score(references, said, verbose=0)
    columns = {f"Bleu_{n + 1}": (bleu[n], bleus[n]) for n in range(4)}
    words = any(text.split() for texts in references.values() for text in texts)
    for name, scorer in ({"ROUGE_L": Rouge()} | ({"CIDEr": Cider()} if words else {})).items():
        value, values = scorer.compute_score(references, said)
        columns[name] = (float(value), values.tolist())
    return columns


def coco(folder: Path, results: str) -> tuple[dict[str, str], dict[str, list[str]], dict]:
    """Tokens of a result file and of the references, and the expected values."""
    words = json.loads((folder / "ptb_tokens.json").read_text())
    by_text: dict[str, str] = {}
    references: dict[str, list[str]] = {}
    rest = {row["id"] for row in json.loads((folder / "references.json").read_text())["annotations"]}
    for row in json.loads((folder / "captions_val2017.json").read_text())["annotations"]:
        by_text[row["caption"]] = words[str(row["id"])]
        if row["id"] in rest:
            references.setdefault(str(row["image_id"]), []).append(words[str(row["id"])])
    rows = json.loads((folder / f"results_{results}.json").read_text())
    said = {str(row["image_id"]): by_text.get(row["caption"], row["caption"].rstrip(" .")) for row in rows}
    expected = json.loads((folder / "expected_pycocoevalcap_1.2.json").read_text())[results]
    return {name: said[name] for name in expected["per_image"]}, references, expected


def counts_of(text: str, n: int) -> Counter:
    words = text.split()
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def every_count(references: dict[str, list[str]]) -> Counter:
    """In how many images each n-gram is, single images too."""
    every: Counter = Counter()
    for texts in references.values():
        every.update({gram for text in texts for n in (1, 2, 3, 4) for gram in counts_of(text, n)})
    return every
