"""Images with captions, and how they become a ``Batch``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tellapart.data.images import ImageSource, UnreadableImage
from tellapart.errors import UsageError
from tellapart.frames import Opener, Processor, seen_as
from tellapart.packed import Keyed, TextLists, Texts

if TYPE_CHECKING:
    from torch import Tensor

    from tellapart.types import Batch


class FeatureProcessor(Protocol):
    """Image ids -> a model's tensors, one row per image: features that were computed before."""

    def __call__(self, ids: Sequence[str]) -> dict[str, Tensor]:
        """The tensors."""
        ...

    def fingerprint(self, image_id: str) -> str:
        """A hash of what an image's row holds."""
        ...


@dataclass(frozen=True)
class Example:
    """One image or clip, its id and its human captions (perhaps none), byte for byte as they are stored.

    ``context`` is cleaned text that is known of the image besides its pixels (``tellapart.data.context``).
    """

    id: str
    image: ImageSource
    references: tuple[str, ...] = ()
    context: str = ""


class LazyExamples(Sequence[Example]):
    """Examples that are made when they are asked for, where a list of them would be too large; no two share an id.

    A slice of them is of the same kind.

    Attributes:
        problems: what could not be read of where they come from: a file's name, and a sentence.
    """

    problems: tuple[tuple[str, str], ...] = ()

    def ids(self) -> Iterator[str]:
        """The ids in order, without making examples of them."""
        raise NotImplementedError

    def take(self, places: np.ndarray) -> LazyExamples:
        """Those at ascending places."""
        raise NotImplementedError

    def runs(self) -> list[int]:
        """How many follow each other that are stored together."""
        raise NotImplementedError


def problems_of(examples: Sequence[Example]) -> tuple[tuple[str, str], ...]:
    """What could not be read of where examples come from: a file's name, and a sentence."""
    return examples.problems if isinstance(examples, LazyExamples) else ()


def with_damaged(examples: Sequence[Example]) -> Sequence[Example]:
    """The images, and one that cannot be opened for each file that should have held some, so that both are listed alike."""
    damaged = [Example(name, UnreadableImage(name, why)) for name, why in problems_of(examples)]
    return [*examples, *damaged] if damaged else examples


@dataclass(frozen=True)
class PackedExamples(Sequence[Example]):
    """Images known by their captions, as examples that are made when they are asked for; a slice is a list.

    Args:
        ids: of N images.
        captions: N lists.
        names: what finds each image.
        picture: makes an image of its name.
    """

    ids: Texts
    captions: TextLists
    names: Texts
    picture: Callable[[str], ImageSource]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return Example(self.ids[index], self.picture(self.names[index]), tuple(self.captions[index]))

    def without_blank_captions(self) -> PackedExamples:
        """The same images without captions that are empty or only space."""
        kept = TextLists.of([text for text in texts if text.strip()] for texts in self.captions)
        return replace(self, captions=kept)

    def __iter__(self) -> Iterator[Example]:
        for name, captions, picture in zip(self.ids, self.captions, self.names, strict=True):
            yield Example(name, self.picture(picture), tuple(captions))


def joined(parts: Sequence[Sequence[Example]]) -> Sequence[Example]:
    """The examples of all parts: as they are where there is one part, else a list."""
    return parts[0] if len(parts) == 1 else [example for part in parts for example in part]


class CaptionDataset(Sequence[Example]):
    """The images of one split, in a fixed order.

    Raises:
        UsageError: there are no images, or two share an id.
    """

    def __init__(self, examples: Sequence[Example], *, name: str) -> None:
        if not examples:
            raise UsageError(f"{name} holds no images: check the path, the split and the file extensions.")
        compact = isinstance(examples, LazyExamples | PackedExamples)
        self.examples: Sequence[Example] = examples if compact else list(examples)
        self.name = name
        if not isinstance(examples, LazyExamples) and len(set(self.iterate_ids())) < len(self.examples):
            seen: set[str] = set()
            twice = next(i for i in self.iterate_ids() if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise UsageError(f"{name} names image id {twice!r} more than once: ids must be unique.")

    def __repr__(self) -> str:
        lazy = isinstance(self.examples, LazyExamples)  # which have no references
        captions = 0 if lazy else sum(len(example.references) for example in self.examples)
        return f"CaptionDataset({self.name!r}, {len(self):,} images, {captions:,} captions)"

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return CaptionDataset(self.examples[index], name=self.name)
        return self.examples[index]

    @cached_property
    def position(self) -> dict[str, int]:
        """Image id -> its place."""
        return self.positions()

    def positions(self) -> dict[str, int]:
        """Image id -> its place, made for this call. Kept, it would take more memory than captions without images."""
        return {image_id: i for i, image_id in enumerate(self.iterate_ids())}

    def iterate_ids(self) -> Iterator[str]:
        """Image ids in order, one at a time."""
        if isinstance(self.examples, LazyExamples):
            return self.examples.ids()
        if isinstance(self.examples, PackedExamples):
            return iter(self.examples.ids)
        return (example.id for example in self.examples)

    def take(self, places: Sequence[int]) -> CaptionDataset:
        """The images at some places, in the order of the data.

        Args:
            places: distinct ones.
        """
        if isinstance(self.examples, LazyExamples):
            return CaptionDataset(self.examples.take(np.sort(np.array(places, dtype=np.int64))), name=self.name)
        return CaptionDataset([self.examples[i] for i in sorted(places)], name=self.name)

    @property
    def ids(self) -> list[str]:
        """Image ids, in order."""
        return list(self.iterate_ids())

    @property
    def references(self) -> Mapping[str, list[str]]:
        """Image id -> its references, as they are stored; who shows or compares them strips them."""
        if isinstance(self.examples, PackedExamples):
            return Keyed(self.examples.ids, self.examples.captions)
        return {example.id: list(example.references) for example in self.examples}

    def require_references(self, what_for: str) -> None:
        """Raise unless every image has a reference.

        Raises:
            UsageError: naming the first image without one.
        """
        for example in self.examples:
            if not any(reference.strip() for reference in example.references):
                raise UsageError(
                    f"{what_for} needs reference captions, but image {example.id!r} of {self.name} has none: "
                    "add captions, name their column (caption_column), or choose a method and a reward that need none."
                )


def ids_named(names: Iterable[str], dataset: CaptionDataset, what: str, *, field: str) -> dict[str, str]:
    """Name -> id of the image that it names: by id, else by file name, else by file name without ending; others are left out.

    Args:
        names: what a file calls its images.
        dataset: the images.
        what: is about them, for the message.
        field: of that file that should hold the id, for the message.

    Raises:
        UsageError: a name is that of several images.
    """
    ids = set(dataset.iterate_ids())
    files: dict[str, list[str]] = {}
    stems: dict[str, list[str]] = {}
    for example in dataset:
        file = Path(example.image.name)
        files.setdefault(file.name, []).append(example.id)
        stems.setdefault(file.stem, []).append(example.id)
    found: dict[str, str] = {}
    for name in names:
        file = Path(name)
        known = [name] if name in ids else files.get(file.name) or stems.get(file.name) or stems.get(file.stem, [])
        if len(known) > 1:
            raise UsageError(
                f"{what} are about {name!r}, but {dataset.name} has several images of that name, such as {known[0]!r} and "
                f"{known[1]!r}: give the images' ids as {field}."
            )
        if known:
            found[name] = known[0]
    return found


class Collate:
    """Turns examples into a batch, running each named processor once on all images.

    Args:
        processors: name of a model -> what it reads of pictures. Without any, no picture is opened. One with ``num_frames``
            reads frames of clips (``Opener``), any other one a still per image.
        features: name of a model -> what it reads by image ids.
    """

    def __init__(
        self, processors: Mapping[str, Processor], *, features: Mapping[str, FeatureProcessor] | None = None
    ) -> None:
        self.processors, self.features = dict(processors), dict(features or {})
        self._opener = Opener(self.processors)

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """The examples as a batch; references lose the space around them.

        Raises:
            UsageError: an image, or its features, cannot be read.
        """
        from tellapart.types import Batch  # imports torch, which captions without images do without

        inputs = self._opener.inputs([self._opener.open(example.image) for example in examples])
        ids = [example.id for example in examples]
        inputs |= {name: processor(ids) for name, processor in self.features.items()}
        references = [[text.strip() for text in e.references] for e in examples]
        return Batch(ids, references, inputs, [example.context for example in examples])

    def fingerprint(self, example: Example) -> str:
        """A hash that tells what models see of an example from what they see of others."""
        if self.processors or not self.features:
            return seen_as(example.image, self._opener.num_frames)
        return "".join(processor.fingerprint(example.id) for processor in self.features.values())
