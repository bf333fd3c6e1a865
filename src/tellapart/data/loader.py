"""Which images each optimiser step sees, and reading them."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.draws import mix_seeds
from tellapart.errors import UsageError
from tellapart.types import Batch


@dataclass(frozen=True)
class Cut:
    """How the images of one optimiser step are divided: contiguously over ranks, then over a rank's micro-batches.

    Args:
        batch_size: images in a micro-batch.
        micro_batches: micro-batches a rank works through in a step.
        rank: which process this is.
        world_size: processes that share a step.
    """

    batch_size: int
    micro_batches: int = 1
    rank: int = 0
    world_size: int = 1

    @property
    def effective_batch_size(self) -> int:
        """Images in one optimiser step, over all ranks and micro-batches."""
        return self.batch_size * self.micro_batches * self.world_size

    def positions(self, step: int, micro_batch: int) -> range:
        """Places in the endless sequence of images that this rank's micro-batch covers."""
        first = step * self.effective_batch_size + (self.rank * self.micro_batches + micro_batch) * self.batch_size
        return range(first, first + self.batch_size)


class TrainingData:
    """A dataset read in an order that follows from the seed alone.

    Epochs are permutations laid end to end; step s takes the next ``effective_batch_size`` images of that sequence,
    whatever the number of devices, micro-batches or workers. So there are no partial batches, a dataset smaller than a
    batch repeats within it, and reading can begin at any step without replaying the ones before.
    """

    def __init__(self, dataset: CaptionDataset, collate: Callable[[Sequence[Example]], Batch]) -> None:
        self.dataset, self.collate = dataset, collate

    def __len__(self) -> int:
        """Images in one epoch."""
        return len(self.dataset)

    def fingerprint(self) -> str:
        """SHA-256 of the ids and references, in order."""
        digest = hashlib.sha256()
        for example in self.dataset:
            digest.update(json.dumps([example.id, *(text.strip() for text in example.references)]).encode() + b"\n")
        return digest.hexdigest()

    def batches(self, cut: Cut, *, seed: int, start: int = 0, stop: int, num_workers: int = 0) -> Iterator[list[Batch]]:
        """For each step from ``start`` up to but not including ``stop``: this rank's micro-batches.

        Args:
            cut: this process's share.
            seed: decides the order.
            start: first step.
            stop: the step to end before.
            num_workers: processes that read images ahead; 0 reads in this one.

        Raises:
            UsageError: an image cannot be read; the sentence is that of the image, also from a worker.
        """
        reader = self._reader(self._indices(cut, seed, start, stop), num_workers)
        for _ in range(start, stop):
            micro_batches = [next(reader) for _ in range(cut.micro_batches)]
            for batch in micro_batches:
                if isinstance(batch, UsageError):
                    raise batch
            yield micro_batches  # type: ignore[misc]  # errors were raised

    def _indices(self, cut: Cut, seed: int, start: int, stop: int) -> Iterator[list[int]]:
        size = len(self.dataset)

        @lru_cache(maxsize=2)
        def permutation(epoch: int) -> Tensor:
            return torch.randperm(size, generator=torch.Generator().manual_seed(mix_seeds(seed, "order", epoch)))

        for step in range(start, stop):
            for micro_batch in range(cut.micro_batches):
                yield [int(permutation(p // size)[p % size]) for p in cut.positions(step, micro_batch)]

    def _reader(self, indices: Iterator[list[int]], num_workers: int) -> Iterator[Batch | UsageError]:
        if num_workers == 0:
            return map(self._read, indices)
        # Processors live in this process, often bound to a model, so workers are forked where that is safe rather than
        # sent a pickle of it. torch first sets one thread in each worker, which a fork after parallel work needs.
        return iter(
            DataLoader(
                _Rows(self.dataset),
                batch_sampler=indices,
                collate_fn=self._collate,
                num_workers=num_workers,
                multiprocessing_context="fork" if sys.platform == "linux" else None,
            )
        )

    def _read(self, index: list[int]) -> Batch | UsageError:
        return self._collate([self.dataset[i] for i in index])

    def _collate(self, examples: list[Example]) -> Batch | UsageError:
        # Returned, not raised: a worker would wrap it in its own traceback and bury the sentence.
        try:
            return self.collate(examples)
        except UsageError as error:
            return error


class _Rows(Dataset[Example]):
    def __init__(self, dataset: CaptionDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Example:
        return self.dataset[index]
