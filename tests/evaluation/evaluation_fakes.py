"""A captioner that says what it is told, a retriever with given embeddings, and small results to compare."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tellapart.captioners.base import Captioner, Encoded
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.draws import base_seed, uniforms
from tellapart.evaluation.protocol import Protocol, data_digest
from tellapart.evaluation.results import EvaluationResult
from tellapart.types import Batch, Decoding, Rollout

REFERENCES = {
    "1": ("a red star on a grey ground", "a star"),
    "2": ("a blue ring and a red star", "two shapes"),
    "3": ("a green box above a ring", "a box"),
    "4": ("a red star", "a small red star"),
    "5": ("two blue rings", "a ring and a ring"),
}


def toy_dataset(references=REFERENCES) -> CaptionDataset:
    shades = np.random.default_rng(0).integers(0, 255, size=(len(references), 16, 16, 3), dtype=np.uint8)
    pairs = zip(references.items(), shades, strict=True)
    return CaptionDataset([Example(i, ArrayImage(shade), tuple(texts)) for (i, texts), shade in pairs], name="toy test")


def no_inputs() -> Collate:
    return Collate({})


class SayingCaptioner(Captioner):
    """Says ``captions[id]``; when sampling, adds a digit drawn by image id from torch's global generator."""

    def __init__(self, captions: dict[str, str], unfinished: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.captions, self.unfinished = captions, unfinished
        self.layer, self.dropout = nn.Linear(1, 1), nn.Dropout(0.5)
        self.seen: list[tuple[bool, bool, Decoding]] = []

    def generate(self, batch: Batch, decoding: Decoding, *, encoded=None) -> Rollout:
        self.seen.append((self.training or self.dropout.training, torch.is_grad_enabled(), decoding))
        texts = [self.captions[i] for i in batch.ids]
        if decoding.do_sample:
            digits = (uniforms(batch.ids, 1, base_seed())[:, 0] * 1e6).long().tolist()
            texts = [f"{text} {digit}" for text, digit in zip(texts, digits, strict=True)]
        count = len(batch)
        mask = torch.ones(count, 1, dtype=torch.bool)
        finished = torch.tensor([i not in self.unfinished for i in batch.ids])
        return Rollout(batch, torch.arange(count), texts, mask.long(), mask, finished)

    def process(self, images):
        return {}

    def encode(self, batch):
        return Encoded(torch.zeros(len(batch), 1, 1))

    def reusable(self, encoded):
        return encoded

    def tokenize(self, batch, texts, image):
        raise AssertionError("an evaluation reads no human captions as tokens")

    def forward(self, rollout, *, encoded=None, want=()):
        raise AssertionError("an evaluation needs no log-probabilities")

    def reference(self):
        raise AssertionError("an evaluation needs no reference")

    def save(self, folder):
        raise AssertionError("an evaluation saves nothing")

    def load_weights(self, folder):
        raise AssertionError("an evaluation loads nothing")


class FixedListener:
    """Unit vectors drawn once a text and once an image."""

    def __init__(self, name: str, width: int = 3) -> None:
        self.name, self.width = name, width
        self.asked: list[str] = []

    def vector(self, key: str) -> list[float]:
        seed = sum((place + 1) * ord(letter) for place, letter in enumerate(f"{self.name}/{key}"))
        drawn = np.random.default_rng(seed).standard_normal(self.width)
        return (drawn / np.linalg.norm(drawn)).tolist()

    def encode_ids(self, ids):
        return torch.tensor([self.vector(f"image {i}") for i in ids])

    def encode_images(self, batch):
        return self.encode_ids(batch.ids)

    def encode_texts(self, texts):
        self.asked += texts
        return torch.tensor([self.vector(text) for text in texts])

    def fingerprint(self):
        return f"{self.name}-0123456789abcdef"


def toy_result(name: str, *, seed: int, decoding: str | None = "greedy", captions=None) -> EvaluationResult:
    """A result with random rows whose metrics are their means, plus one metric of the whole set."""
    rng = np.random.default_rng(seed)
    ids = list(REFERENCES)
    ranks = rng.integers(1, 8, size=len(ids))
    columns = {
        "CIDEr": rng.gamma(2.0, 0.5, size=len(ids)).tolist(),
        "judge_rank": ranks.tolist(),
        "judge_R@1": (100.0 * (ranks == 1)).tolist(),
        "judge_MRR": (1 / ranks).tolist(),
    }
    metrics = {key: float(np.mean(columns[key])) for key in ("CIDEr", "judge_R@1", "judge_MRR")}
    metrics["Bleu_4"] = 0.1 * (seed + 1)
    said = captions or {i: f"{name} says {texts[0]}" for i, texts in REFERENCES.items()}
    digest = data_digest(toy_dataset().references)
    protocol = Protocol("toy test", len(ids), digest, decoding, {"judge": "0123456789ab"})
    return EvaluationResult(name, protocol, metrics, said, columns)
