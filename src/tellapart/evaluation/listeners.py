"""Evaluation during the training of a listener: retrieval with human captions, and its head's accuracy on corrupted ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tellapart.data.corruptions import CORRUPTIONS, corrupt
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.draws import mix_seeds
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.trained import vision_learns
from tellapart.listeners.vse import Vse
from tellapart.metrics.retrieval import recall_at_k, reference_ranks
from tellapart.rewards.grammar import Grammar, GrammarHead, plain

KS = (1, 5, 10)
HEAD = "grammar_accuracy"
_IMAGES_A_BATCH = 64


class KnownImages(Protocol):
    """Embeddings of images by id, as the weights are now."""

    def encode_ids(self, ids: list[str]) -> Tensor:
        """``[M, D]``, unit norm, no gradient."""
        ...


class ListenerEvaluation:
    """Retrieval both ways between images and all of their references; with a head, its accuracy in percent.

    ``t2i_R@k`` is the share of references whose image is among the first k of all images; ``i2t_R@k`` the share of images
    with one of their own references among the first k of all references; ``R@1_mean`` is the mean of the two R@1. Equal
    references of different images tie, and ties count against both.

    ``grammar_accuracy`` is the mean of ``grammar_accuracy_references`` and ``grammar_accuracy_corrupted``: each reference
    is held against one corruption of it, the same in every evaluation. ``grammar_accuracy_<kind>`` is that of one
    kind of corruption. Some corruptions are sentences by chance, so 100 is out of reach.

    Args:
        dataset: images with references.
        listener: what is trained; it has the images by id, unless it is a CLIP whose image side learns. A head needs a CLIP.
        head: of its text tower; None measures retrieval alone.
        vocabulary: distinct words that corruptions put in; needed with a head.
        images: what has the images by id where it is not the listener itself, as where only projections learn.
        seed: of the corruptions.
        num_workers: processes that read images, where these are embedded again each time.

    Raises:
        UsageError: an image has no reference.
    """

    def __init__(
        self,
        dataset: CaptionDataset,
        listener: ClipListener | Vse,
        *,
        head: GrammarHead | None = None,
        vocabulary: Sequence[str] = (),
        images: KnownImages | None = None,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        dataset.require_references("the evaluation of a listener")
        self.dataset, self.listener, self.head = dataset, listener, head
        self.images, self.num_workers = images, num_workers
        self.texts = [text.strip() for example in dataset for text in example.references if text.strip()]
        owners = [i for i, example in enumerate(dataset) for text in example.references if text.strip()]
        self.owner = np.array(owners)
        self._words = plain(self.texts) if head is not None else []
        self._corrupted = corruptions_of(self._words, vocabulary, seed) if head is not None else []

    def __call__(self, objective: Any = None) -> dict[str, float]:
        """The metrics, all in percent."""
        return self.retrieval() | self.grammar()

    def retrieval(self) -> dict[str, float]:
        """R@1, R@5 and R@10 both ways, and the mean of the two R@1."""
        texts = self.listener.encode_texts(self.texts).float().cpu().numpy()
        t2i, i2t = reference_ranks(texts, self.owner, self._images().float().cpu().numpy())
        found = {f"t2i_R@{k}": recall_at_k(t2i, k) for k in KS} | {f"i2t_R@{k}": recall_at_k(i2t, k) for k in KS}
        return found | {"R@1_mean": (found["t2i_R@1"] + found["i2t_R@1"]) / 2}

    def grammar(self) -> dict[str, float]:
        """Accuracies of the head; nothing without one."""
        if self.head is None or isinstance(self.listener, Vse):
            return {}
        return head_accuracy(Grammar(self.listener, self.head).probabilities, self._words, self._corrupted)

    def _images(self) -> Tensor:
        """``[N, D]``: from the cache where training leaves them as they are."""
        if self.images is not None:
            return self.images.encode_ids(self.dataset.ids)
        if isinstance(self.listener, Vse) or not vision_learns(self.listener):
            return self.listener.encode_ids(self.dataset.ids)
        loader: torch.utils.data.DataLoader = torch.utils.data.DataLoader(
            self.dataset,  # type: ignore[arg-type]  # a sequence serves
            batch_size=_IMAGES_A_BATCH,
            collate_fn=Collate({self.listener.name: self.listener.process}),
            num_workers=self.num_workers,
            pin_memory=self.num_workers > 0 and self.listener.device.type == "cuda",
        )
        return torch.cat([self.listener.encode_images(batch.to(self.listener.device)) for batch in loader])


def metric_names(*, head: bool) -> tuple[str, ...]:
    """What an evaluation gives.

    Args:
        head: whether it measures one. Of a kind of corruption that no text got, nothing is given.
    """
    retrieval = ("R@1_mean", *(f"{way}_R@{k}" for way in ("t2i", "i2t") for k in KS))
    of_head = (f"{HEAD}_{part}" for part in ("references", "corrupted", *CORRUPTIONS))
    return (*retrieval, HEAD, *of_head) if head else retrieval


def corruptions_of(texts: Sequence[str], vocabulary: Sequence[str], seed: int = 0) -> list[tuple[str, str]]:
    """``(kind, corrupted text)`` of each text, which follows from text, place and seed."""
    found = []
    for place, text in enumerate(texts):
        spoilt = corrupt(text, np.random.default_rng(mix_seeds(seed, place, text)), vocabulary)
        found.append((spoilt.kind, spoilt.text))
    return found


def head_accuracy(
    probabilities: Callable[[Sequence[str]], Tensor], texts: Sequence[str], corrupted: Sequence[tuple[str, str]]
) -> dict[str, float]:
    """How often a head is right at a threshold of one half, in percent.

    Args:
        probabilities: texts -> ``[M]`` probability of being grammatical.
        texts: human captions.
        corrupted: kind and text of corrupted ones.
    """
    right = 100 * (probabilities(texts) > 0.5).double().cpu().numpy()
    wrong = 100 * (probabilities([text for _, text in corrupted]) <= 0.5).double().cpu().numpy()
    kinds = np.array([kind for kind, _ in corrupted])
    found = {f"{HEAD}_references": float(right.mean()), f"{HEAD}_corrupted": float(wrong.mean())}
    by_kind = {f"{HEAD}_{kind}": float(wrong[kinds == kind].mean()) for kind in CORRUPTIONS if kind in kinds}
    return {HEAD: sum(found.values()) / 2} | found | by_kind
