"""Shared by matchers that read image and text together: finding the images, and scoring the captions of a rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from tellapart.errors import UsageError, reading_images
from tellapart.frames import Opener, Picture
from tellapart.listeners.cache import NamedPicture
from tellapart.ops import describe_weights
from tellapart.progress import bar
from tellapart.types import Rollout

if TYPE_CHECKING:
    from PIL import Image

Precision = Literal["float32", "bfloat16", "float16"]


def require_probabilities(matcher: Any, named: str, option: str = "matcher") -> None:
    """Raise where a matcher does not decide whether a caption is true.

    Args:
        matcher: any matcher.
        named: what an error calls it.
        option: where a user names another.

    Raises:
        UsageError: it compares vectors, so it gives a cosine.
    """
    if not hasattr(matcher, "rollout_logits"):
        raise UsageError(
            f"{named} is a dual encoder, which gives no probability of a match: name it as a listener, or give a BLIP, BLIP-2 "
            f"or an instruct vision-language model as {option}."
        )


class PairMatcher(ABC):
    """A frozen model that reads an image and a text together, and gives two logits: it is not of the image, or it is.

    It is not an ``nn.Module``, and neither is any listener. The image side runs once per image, and each distinct text of
    an image is read once per call. Nothing is kept from one call to the next: the last bits of a score depend on what it is
    computed with, and a training must resume to the same weights.

    Attributes:
        model: the model.
        name: key of its tensors in ``batch.inputs``.
        batch_size: most images, and most texts, read at once.
        autocast: precision of matrix products.
        source: what the model was loaded from, as results call it.
    """

    def __init__(self, model: Any, *, name: str, batch_size: int, autocast: Precision) -> None:
        self.model: Any = model.eval()
        self.name, self.batch_size, self.autocast, self.source = name, batch_size, autocast, model.config.model_type
        self._pictures: dict[str, Picture] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source}, {describe_weights(self.model)}, name {self.name!r})"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> Self:
        """Move the model; returns the matcher."""
        self.model.to(device)
        return self

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Model, backbone, 12 digits of a hash of what determines a score, and precision."""

    @abstractmethod
    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Of each text whether the model cannot take all of it."""

    @abstractmethod
    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """RGB images -> the tensors that the model reads, one row per image, on the CPU."""

    @abstractmethod
    def _pairs(self, inputs: dict[str, Tensor], image: list[int], texts: list[str]) -> Tensor:
        """``[N, 2]`` float32 on the CPU, of N texts with the rows of ``inputs`` that they are of."""

    @abstractmethod
    def score(self, logits: Tensor) -> Tensor:
        """``[N]``: the one number that two logits ``[N, 2]`` become as a reward."""

    def know_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Let images be named by id; they are opened when they are asked for."""
        self._pictures.update((example.id, example.image) for example in dataset)

    def match(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient: ``score`` of each caption with its image.

        Images come from ``batch.inputs[name]`` if present, else from what ``know_images`` was given.

        Raises:
            UsageError: there is neither.
        """
        return self.score(self.rollout_logits(rollout)).to(rollout.image.device, torch.float32)

    def rollout_logits(self, rollout: Rollout) -> Tensor:
        """``[N, 2]`` float32 on the CPU, without gradient: the logits (no match, match) of each caption with its image.

        Raises:
            UsageError: an image is neither in the batch nor known.
        """
        of_image: dict[int, list[str]] = {}
        for text, row in zip(rollout.texts, rollout.image.tolist(), strict=True):
            of_image.setdefault(row, []).append(text)
        rows, texts = list(of_image), [list(dict.fromkeys(own)) for own in of_image.values()]
        given = rollout.batch.inputs.get(self.name)
        if given is None:
            found = self.match_ids([rollout.batch.ids[row] for row in rows], texts)
        else:
            found = []
            for start in range(0, len(rows), self.batch_size):
                some = slice(start, start + self.batch_size)
                found += self._match({key: value[rows[some]] for key, value in given.items()}, texts[some])
        logits_of = {
            (row, text): pair
            for row, own, logits in zip(rows, texts, found, strict=True)
            for text, pair in zip(own, logits, strict=True)
        }
        pairs = zip(rollout.image.tolist(), rollout.texts, strict=True)
        ordered = [logits_of[pair] for pair in pairs]
        return torch.stack(ordered) if ordered else torch.zeros(0, 2)

    def match_ids(self, ids: Sequence[str], texts: Sequence[Sequence[str]], *, tells: bool = True) -> list[Tensor]:
        """For each image of ``ids`` the logits ``[n, 2]`` (no match, match) of its n texts, float32 on the CPU.

        Args:
            ids: of images.
            texts: of each image.
            tells: show progress; a caller that shows its own does without.

        Raises:
            UsageError: an image was not given to ``know_images``, or cannot be read.
        """
        unknown = next((name for name in ids if name not in self._pictures), None)
        if unknown is not None:
            raise UsageError(
                f"the matcher {self.name!r} does not know image {unknown!r}: tell it the images of the data set first, or "
                "put its tensors into the batch."
            )
        found, opener = list[Tensor](), Opener.of(self.process)
        shown = bar(f"{self.name}: matching", len(ids)) if tells else nullcontext()
        with shown as running, ThreadPoolExecutor() as pool:
            for start in range(0, len(ids), self.batch_size):
                some = slice(start, start + self.batch_size)
                images = list(pool.map(lambda name: opener.single(self._pictures[name]), ids[some]))
                found += self._match(self.process(images), texts[some])
                if running is not None:
                    running.advance(len(images))
        return found

    @torch.no_grad()
    def _match(self, inputs: dict[str, Tensor], texts: Sequence[Sequence[str]]) -> list[Tensor]:
        """One ``[n, 2]`` per image."""
        counts = [len(own) for own in texts]
        if not any(counts):
            return [torch.zeros(0, 2) for _ in counts]
        image = [row for row, own in enumerate(texts) for _ in own]
        with self._precision(), reading_images(self.source):
            logits = self._pairs(inputs, image, [text for own in texts for text in own])
        return list(logits.float().cpu().split(counts))

    @contextmanager
    def _precision(self) -> Iterator[None]:
        # A caller's autocast must not decide between captions that are nearly as good: precision is the matcher's own.
        precision = getattr(torch, self.autocast)
        lower = precision != torch.float32
        with torch.autocast(self.device.type, precision if lower else None, enabled=lower):
            yield
