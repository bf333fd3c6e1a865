"""Which images each optimiser step sees, and reading them."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch.utils.data import DataLoader, Dataset

from tellapart.data.center_crop import is_center_cropped
from tellapart.data.dataset import CaptionDataset, Example, LazyExamples
from tellapart.data.order import Order
from tellapart.errors import UsageError
from tellapart.types import Batch

logger = logging.getLogger(__name__)

TRIES = 32
"""Images that are tried for one place in a step before the data count as unreadable."""

NAMED = 5
"""Unreadable images that are named in the log, next to their number."""

UNFIT = (ValueError, TypeError, ArithmeticError, OSError, RuntimeError)
"""What processors raise over an image that they cannot take, such as one of a single pixel."""


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


@dataclass(frozen=True)
class Place:
    """The place of an image: its position in the sequence of all steps, and its place among the data."""

    position: int
    index: int


@dataclass(frozen=True)
class Loaded:
    """A micro-batch.

    Args:
        batch: its images.
        replaced: id and reason of images that belonged to it and could not be read.
    """

    batch: Batch
    replaced: dict[str, str] = field(default_factory=dict)

    def pin_memory(self) -> Loaded:
        """The same in page-locked memory, from which a copy to a GPU does not wait; a ``DataLoader`` asks for it."""
        return Loaded(self.batch.pin_memory(), self.replaced)


class TrainingData:
    """A dataset read in an order that follows from the seed alone.

    Epochs are permutations laid end to end; step s takes the next ``effective_batch_size`` images of that sequence,
    whatever the number of devices, micro-batches or workers. So there are no partial batches, a dataset smaller than a
    batch repeats within it, and reading can begin at any step without replaying the ones before.

    Args:
        dataset: the images.
        collate: makes batches of them.
        replace_unreadable: an image that cannot be read is replaced by the one in the same place of the next step (the
            step after, if that cannot be read either, and so on), which follows from seed and step, too; otherwise it raises.
        shuffle_window: None shuffles all images; see ``Order``.
        further: a digest of what else steps read, such as preferences; empty for nothing.

    Attributes:
        replaced: id and reason of the images that could not be read so far, as far as this process knows.
        on_replaced: called where ``figures`` learns of some.
    """

    def __init__(
        self,
        dataset: CaptionDataset,
        collate: Callable[[Sequence[Example]], Batch],
        *,
        replace_unreadable: bool = False,
        shuffle_window: int | None = None,
        further: str = "",
    ) -> None:
        self.dataset, self.collate, self.further = dataset, collate, further
        self.replace_unreadable, self.shuffle_window = replace_unreadable, shuffle_window
        self.replaced: dict[str, str] = {}
        self.on_replaced: Callable[[], None] | None = None
        self._known = 0

    def __repr__(self) -> str:
        told = ", unreadable images replaced" if self.replace_unreadable else ""
        return f"TrainingData({self.dataset!r}{told})"

    def __len__(self) -> int:
        """Images in one epoch."""
        return len(self.dataset)

    def fingerprint(self) -> str:
        """SHA-256 of the ids, references and contexts, in order, of the images' being cropped, and of ``further``."""
        digest = hashlib.sha256(b"center-cropped\n" if is_center_cropped(self.dataset) else b"")
        digest.update(self.further.encode())
        if isinstance(self.dataset.examples, LazyExamples):  # which have no references
            for image_id in self.dataset.iterate_ids():
                digest.update(json.dumps([image_id]).encode() + b"\n")
            return digest.hexdigest()
        for example in self.dataset:
            digest.update(json.dumps([example.id, *(text.strip() for text in example.references)]).encode() + b"\n")
            if example.context:
                digest.update(json.dumps({"context": example.context}).encode() + b"\n")
        return digest.hexdigest()

    @property
    def sample(self) -> CaptionDataset:
        """Images to try models on: all, or, where unreadable ones are replaced, the first few that can be read."""
        return first_readable(self.dataset, self.collate) if self.replace_unreadable else self.dataset

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
        order = self._order(seed)
        places = (
            [Place(position, order[position]) for position in cut.positions(step, micro_batch)]
            for step in range(start, stop)
            for micro_batch in range(cut.micro_batches)
        )
        reader = self._reader(places, _Rows(self, order, cut.effective_batch_size), num_workers)
        for _ in range(start, stop):
            yield [self._told(next(reader)) for _ in range(cut.micro_batches)]

    def figures(self, gather: Callable[[object], list]) -> dict[str, float]:
        """Logged figures of the images: the number of different unreadable ones so far, on all devices.

        Args:
            gather: an object of each device -> those of all devices; every device must call this.
        """
        if not self.replace_unreadable:
            return {}
        for others in gather(self.replaced):
            self.replaced |= others
        if len(self.replaced) > self._known and self.on_replaced is not None:
            self.on_replaced()
        self._known = len(self.replaced)
        return {"unreadable_images": float(len(self.replaced))}

    def _order(self, seed: int) -> Order:
        examples = self.dataset.examples
        runs = examples.runs() if self.shuffle_window and isinstance(examples, LazyExamples) else None
        return Order(len(self.dataset), seed, window=self.shuffle_window, runs=runs)

    def _reader(self, places: Iterator[list[Place]], rows: _Rows, num_workers: int) -> Iterator[Loaded | UsageError]:
        if num_workers == 0:
            return map(rows.__getitem__, places)
        # Processors live in this process, often bound to a model, so workers are forked where that is safe rather than
        # sent a pickle of it. torch first sets one thread in each worker, which a fork after parallel work needs.
        return iter(
            DataLoader(
                rows,
                batch_size=None,
                sampler=places,  # what it gives is handed on as it is
                collate_fn=_as_it_is,  # type: ignore[arg-type]  # without batch_size it is given one
                num_workers=num_workers,
                pin_memory=torch.cuda.is_available(),
                multiprocessing_context="fork" if sys.platform == "linux" else None,
            )
        )

    def _told(self, loaded: Loaded | UsageError) -> Batch:
        """The batch; images that could not be read are counted, and the first of them named."""
        if isinstance(loaded, UsageError):
            raise loaded
        for name, reason in loaded.replaced.items():
            if name not in self.replaced and len(self.replaced) < NAMED:
                last = " Further ones are counted only." if len(self.replaced) == NAMED - 1 else ""
                logger.warning("replaced by another image: %s%s", reason, last)
            self.replaced.setdefault(name, reason)
        return loaded.batch


class _Rows(Dataset["Loaded | UsageError"]):
    """Reads micro-batches, in this process or in a worker.

    Args:
        data: what to read.
        order: where an image is unreadable, another may have to be looked up.
        stride: positions from a place to the same one of the next step.
    """

    def __init__(self, data: TrainingData, order: Order, stride: int) -> None:
        self.dataset, self.collate, self.replaces = data.dataset, data.collate, data.replace_unreadable
        self.order, self.stride = order, stride
        self._unreadable: dict[int, str] = {}  # so that an image is reported once, not in every epoch

    def __getitem__(self, places: list[Place]) -> Loaded | UsageError:
        # Returned, not raised: a worker would wrap it in its own traceback and hide the sentence.
        try:
            return Loaded(self.collate([self.dataset[place.index] for place in places]))
        except UsageError as error:
            if not self.replaces:
                return error
        except UNFIT:
            if not self.replaces:
                raise
        try:
            return self._replacing(places)
        except UsageError as error:
            return error

    def _replacing(self, places: list[Place]) -> Loaded:
        replaced: dict[str, str] = {}
        return Loaded(self.collate([self._readable(place, replaced) for place in places]), replaced)

    def _readable(self, place: Place, replaced: dict[str, str]) -> Example:
        """The image at a place, or the first that can be read at the same one of the steps after."""
        reason = ""
        for step in range(TRIES):
            index = self.order[place.position + step * self.stride] if step else place.index
            if (
                index not in self._unreadable
                and (found := why_unreadable(self.dataset[index], self.collate)) is not None
            ):
                self._unreadable[index] = found
            if index not in self._unreadable:
                return self.dataset[index]
            reason = replaced[self.dataset[index].id] = self._unreadable[index]
        raise UsageError(f"{TRIES} images of {self.dataset.name} in a row cannot be read: {reason}")


def why_unreadable(example: Example, collate: Callable[[Sequence[Example]], Batch]) -> str | None:
    """A sentence, if an image cannot be read or prepared for a model."""
    try:
        collate([example])
    except UsageError as error:
        return str(error)
    except UNFIT as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        return f"{example.image.name} cannot be prepared for the model ({reason}): resize or remove it."
    return None


def first_readable(
    dataset: CaptionDataset, collate: Callable[[Sequence[Example]], Batch], count: int = 16
) -> CaptionDataset:
    """The first images that can be read, of those at the beginning of the data.

    Raises:
        UsageError: none of many can.
    """
    reason: str | None = None
    found: list[Example] = []
    for example in islice(dataset, 10 * TRIES):
        why = why_unreadable(example, collate)
        found += [example] if why is None else []
        reason = why or reason
        if len(found) == count:
            break
    if not found:
        raise UsageError(f"the first images of {dataset.name} cannot be read: {reason}")
    return CaptionDataset(found, name=dataset.name)


def _as_it_is(loaded: Loaded | UsageError) -> Loaded | UsageError:
    return loaded
