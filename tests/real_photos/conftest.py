"""COCO photos as they are, and small parts that more than one test needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.load import load_dataset
from tellapart.types import Batch


@pytest.fixture(scope="session")
def coco_mini(shared_data) -> Path:
    """A Karpathy file beside its photos."""
    path = shared_data / "coco-mini" / "dataset_karpathy.json"
    if not path.is_file():
        pytest.skip(f"the COCO sample lacks {path.name}")
    return path


@pytest.fixture(scope="session")
def sixteen(coco_mini) -> CaptionDataset:
    """16 training photos, each with its first caption only; all 16 say different things."""
    examples = [
        replace(example, references=example.references[:1])
        for example in load_dataset(coco_mini, split="train", limit=16)
    ]
    return CaptionDataset(examples, name="16 photos")


class Once:
    """A collate function that decodes and processes every photo once, which is most of the work at this size."""

    def __init__(self, collate: Collate) -> None:
        self.collate, self.known = collate, dict[str, Batch]()

    def __call__(self, examples: Sequence[Example]) -> Batch:
        for example in examples:
            if example.id not in self.known:
                self.known[example.id] = self.collate([example])
        parts = [self.known[example.id] for example in examples]
        inputs = {
            model: {key: torch.cat([part.inputs[model][key] for part in parts]) for key in tensors}
            for model, tensors in parts[0].inputs.items()
        }
        return Batch([e.id for e in examples], [list(e.references) for e in examples], inputs)
