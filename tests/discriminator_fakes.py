"""Listeners, images and captions for the tests of discriminators."""

from __future__ import annotations

import random

import numpy as np
import torch
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

from pictures import CAPTIONS
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ArrayImage
from tellapart.listeners.clip import ClipListener
from tellapart.types import Batch, Rollout
from tiny_models import redraw, word_tokenizer

SENTENCES = [*CAPTIONS, *(text.replace("a table", "the floor") for text in CAPTIONS)]


def tiny_listener(*, seed: int = 0) -> ClipListener:
    """A CLIP of width 16 that knows the words of ``SENTENCES``."""
    tokenizer = word_tokenizer(SENTENCES)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    text = sizes | {"vocab_size": len(tokenizer), "max_position_embeddings": 24, "eos_token_id": 3, "bos_token_id": 1}
    vision = sizes | {"image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text | {"pad_token_id": 0}, vision_config=vision, projection_dim=16))
    redraw(model, std=0.25, seed=seed)
    processor = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    return ClipListener.from_parts(model, processor, tokenizer, prefix="")


class BagOfWords:
    """A listener that cannot see order: a text is the normalised sum of its words' random vectors."""

    name = "bag"

    def __init__(self, width: int = 16) -> None:
        self.width, self.asked, self._known = width, list[str](), dict[str, np.ndarray]()

    def _vector(self, word: str) -> np.ndarray:
        if word not in self._known:
            seed = sum(ord(character) * 31**i for i, character in enumerate(word))
            self._known[word] = np.random.default_rng(seed).standard_normal(self.width)
        return self._known[word]

    def encode_images(self, batch: Batch) -> torch.Tensor:
        return self.encode_texts([f"image-{name}" for name in batch.ids])

    def encode_ids(self, ids):
        raise AssertionError("not asked for")

    def encode_texts(self, texts) -> torch.Tensor:
        self.asked += texts
        # Words are summed in alphabetical order, so that not even the rounding knows theirs.
        rows = [sum((self._vector(word) for word in sorted(text.split())), np.zeros(self.width)) for text in texts]
        return torch.nn.functional.normalize(torch.tensor(np.stack(rows), dtype=torch.float32), dim=1)


def shuffled(text: str) -> str:
    """The same words in another order."""
    words, rng = text.split(), random.Random(text)
    while words == text.split():
        rng.shuffle(words)
    return " ".join(words)


def captions(texts, *, batch: Batch | None = None, finished=None, inputs=None) -> Rollout:
    """One caption of each image, as strings; tokens are not looked at."""
    count = len(texts)
    batch = batch or Batch([f"i{i}" for i in range(count)], [[] for _ in texts], inputs or {})
    ended = torch.ones(count).bool() if finished is None else torch.tensor(finished)
    tokens = torch.zeros(count, 1).long()
    return Rollout(batch, torch.arange(count), list(texts), tokens, torch.ones(count, 1).bool(), ended)


def pictures(count: int, *, name: str = "image") -> CaptionDataset:
    """Different images with two references each."""
    pixels = np.random.default_rng(len(name)).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    texts = [(SENTENCES[(2 * i) % 128], SENTENCES[(2 * i + 9) % 128]) for i in range(count)]
    return CaptionDataset([Example(f"{name}-{i}", ArrayImage(pixels[i]), texts[i]) for i in range(count)], name=name)
