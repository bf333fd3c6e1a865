"""The records that stages exchange, and the protocols they agree on.

Only torch and ranges of numbers are imported here: every other module may depend on this one. Shapes use B for images,
N for captions, T for tokens, D for an embedding width and V for the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from tellapart.ranges import NonNegativeInt, PositiveFloat, PositiveInt, PositiveUnitFloat, require_fields

Index = Tensor | Sequence[int]


@dataclass(frozen=True)
class Batch:
    """B images with what is known of them.

    Args:
        ids: B image ids.
        references: B lists of human captions; a list may be empty (an unlabelled image).
        inputs: name of a processor -> its tensors, each with B rows; opaque to everyone but the model of that name.
        contexts: B texts that are known of the images besides their pixels, or none at all.
    """

    ids: list[str]
    references: list[list[str]]
    inputs: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    contexts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Index) -> Batch:
        """The images at ``index`` (repeats allowed), in that order."""
        rows = torch.as_tensor(index, dtype=torch.long)
        chosen = rows.tolist()
        inputs = {
            name: {key: value[rows.to(value.device)] for key, value in tensors.items()}
            for name, tensors in self.inputs.items()
        }
        contexts = [self.contexts[i] for i in chosen] if self.contexts else []
        return Batch([self.ids[i] for i in chosen], [self.references[i] for i in chosen], inputs, contexts)

    def pin_memory(self) -> Batch:
        """The same images with their tensors in page-locked memory, from which a copy to a GPU does not wait."""
        inputs = {
            name: {key: value.pin_memory() for key, value in tensors.items()} for name, tensors in self.inputs.items()
        }
        return replace(self, inputs=inputs)

    def to(self, device: torch.device | str) -> Batch:
        """The same images with their tensors on ``device``."""
        inputs = {
            name: {key: value.to(device, non_blocking=True) for key, value in tensors.items()}
            for name, tensors in self.inputs.items()
        }
        return replace(self, inputs=inputs)


@dataclass(frozen=True)
class Decoding:
    """How captions are drawn; the names are those of Hugging Face's ``generate``.

    Args:
        num_beams: beams kept by beam search; 1 is greedy search or sampling.
        num_return_sequences: captions returned for each image; with beam search at most ``num_beams``.
        do_sample: draw from the distribution instead of taking its maximum.
        temperature: logits are divided by it before sampling.
        top_k: keep only the k likeliest tokens when sampling; 0 keeps all.
        top_p: keep the smallest set of tokens of at least this probability when sampling; 1 keeps all.
        max_new_tokens: longest caption in tokens, its EOS included.
        min_new_tokens: EOS is impossible before this many tokens.
        no_repeat_ngram_size: no n-gram of this size may occur twice, those of the prompt counted; 0 allows all.
        length_penalty: exponent of the length by which beam scores are divided.

    Raises:
        ValueError: a number is outside its range, or the combination cannot be decoded.
    """

    num_beams: PositiveInt = 1
    num_return_sequences: PositiveInt = 1
    do_sample: bool = False
    temperature: PositiveFloat = 1.0
    top_k: NonNegativeInt = 0
    top_p: PositiveUnitFloat = 1.0
    max_new_tokens: PositiveInt = 40
    min_new_tokens: NonNegativeInt = 0
    no_repeat_ngram_size: NonNegativeInt = 0
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        require_fields(self)
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty={self.length_penalty} must be a finite number")
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens={self.min_new_tokens} is above max_new_tokens={self.max_new_tokens}: no caption could end"
            )
        if self.do_sample and self.num_beams > 1:
            raise ValueError("beam search with sampling is not supported: set num_beams=1 or do_sample=False")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences={self.num_return_sequences} captions need do_sample=True or as many num_beams"
            )

    def greedy(self) -> Decoding:
        """Greedy search with the same restrictions and longest length."""
        return replace(
            self,
            num_beams=1,
            num_return_sequences=1,
            do_sample=False,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            length_penalty=1.0,
        )


@dataclass(frozen=True)
class Rollout:
    """N captions of the images of a batch: drawn by a captioner, or written by people.

    Args:
        batch: the images.
        image: ``[N]`` long, the row of ``batch`` each caption is of.
        texts: N decoded captions without special tokens.
        tokens: ``[N, T]`` long, caption tokens only: no start token, no prompt; EOS included.
        mask: ``[N, T]`` bool, true on every real token up to and including the first EOS.
        finished: ``[N]`` bool, whether the caption ends in EOS (false when it was cut at the longest length).
        dtype_difference: ``[n]`` nats for the first n captions: the mean over a caption's tokens of the absolute difference of
            log-probabilities between the dtype of drawing and float32; none where it was not measured, as in float32.
        bucket: ``[N]`` long, the length bucket that each caption was asked for (of a human caption, that of its own length); none
            for a captioner without length buckets.
    """

    batch: Batch
    image: Tensor
    texts: list[str]
    tokens: Tensor
    mask: Tensor
    finished: Tensor
    dtype_difference: Tensor | None = None
    bucket: Tensor | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @staticmethod
    def of_texts(batch: Batch, image: Sequence[int], texts: Sequence[str]) -> Rollout:
        """Texts without tokens, for rewards and matchers, which read ``texts``; each counts as finished.

        Args:
            batch: the images.
            image: N rows of ``batch``, that of each text.
            texts: N of them.
        """
        tokens = torch.zeros(len(texts), 1, dtype=torch.long)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        return Rollout(batch, torch.tensor(image, dtype=torch.long), list(texts), tokens, mask, mask[:, 0])

    @property
    def lengths(self) -> Tensor:
        """``[N]`` long, tokens of each caption, EOS counted."""
        return self.mask.sum(dim=1)

    def ids(self) -> list[str]:
        """N image ids, one per caption."""
        return [self.batch.ids[i] for i in self.image.tolist()]

    def references(self) -> list[list[str]]:
        """N lists of references, those of each caption's image."""
        return [self.batch.references[i] for i in self.image.tolist()]

    def select(self, index: Index) -> Rollout:
        """The captions at ``index``, in that order, of the same batch; trailing padding is dropped."""
        rows = torch.as_tensor(index, dtype=torch.long, device=self.tokens.device)
        mask = self.mask[rows]
        width = max(int(mask.sum(dim=1).max()), 1) if len(rows) else 1
        return Rollout(
            self.batch,
            self.image[rows],
            [self.texts[i] for i in rows.tolist()],
            self.tokens[rows][:, :width],
            mask[:, :width],
            self.finished[rows],
            bucket=None if self.bucket is None else self.bucket[rows],
        )

    @staticmethod
    def concat(rollouts: Sequence[Rollout]) -> Rollout:
        """All captions of ``rollouts``, which must be of one and the same batch, padded to the longest.

        Raises:
            ValueError: there is nothing to join, or the rollouts are of different batches.
        """
        if not rollouts:
            raise ValueError("no rollouts to join")
        if any(rollout.batch is not rollouts[0].batch for rollout in rollouts):
            raise ValueError("only rollouts of the same batch can be joined")
        width = max(rollout.tokens.shape[1] for rollout in rollouts)

        def padded(tensor: Tensor) -> Tensor:
            return nn.functional.pad(tensor, (0, width - tensor.shape[1]))

        buckets = [rollout.bucket for rollout in rollouts if rollout.bucket is not None]

        return Rollout(
            rollouts[0].batch,
            torch.cat([rollout.image for rollout in rollouts]),
            [text for rollout in rollouts for text in rollout.texts],
            torch.cat([padded(rollout.tokens) for rollout in rollouts]),
            torch.cat([padded(rollout.mask) for rollout in rollouts]),
            torch.cat([rollout.finished for rollout in rollouts]),
            bucket=torch.cat(buckets) if len(buckets) == len(rollouts) else None,
        )


@dataclass(frozen=True)
class Scores:
    """Scores of a rollout by a captioner under the raw distribution (temperature 1, nothing cut off).

    Args:
        logprobs: ``[N, T]`` float32, natural log-probability of each chosen token; 0 where masked.
        entropy: ``[N, T]`` in nats, only when asked for; 0 where masked.
        hidden: ``[N, T, D]`` last hidden state that predicted each token, only when asked for.
        logits: ``[N, T, V]``, only when asked for (large).
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    hidden: Tensor | None = None
    logits: Tensor | None = None


@dataclass(frozen=True)
class StepOutput:
    """One differentiable piece of a step's loss.

    The loss of a step is the sum of ``loss`` over all pieces, micro-batches and devices, divided by the sum of ``weight``
    over the same; so how a batch is cut never changes the result. A piece on a scale of its own has weight 0.

    Args:
        loss: scalar, a SUM over what ``weight`` counts.
        weight: scalar without gradient, what the loss is to be divided by.
        logs: detached values per name, one per item (any shape); the mean over all items of the step is logged.
    """

    loss: Tensor
    weight: Tensor
    logs: dict[str, Tensor] = field(default_factory=dict)


Reward = Callable[[Rollout], Tensor]
"""``rollout -> [N]``: at least float32, no gradient, higher is better."""

Gather = Callable[[Tensor], Tensor]
"""Concatenates a tensor's rows over devices, in rank order; the identity on one device."""


@runtime_checkable
class MixedReward(Protocol):
    """A reward that also returns its parts, as applied."""

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]``, the sum of the parts."""
        ...

    def parts(self, rollout: Rollout) -> dict[str, Tensor]:
        """Name -> ``[N]`` weighted contribution; they sum to the reward."""
        ...


class LearnedReward(Protocol):
    """A reward that is trained with the captioner: an ``nn.Module``, and a child of the objective that holds it."""

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` probability (0 to 1) that a person wrote the caption, without gradient."""
        ...

    def loss(self, real: Rollout, fake: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """``([N_real + N_fake], logs)``: each row's binary cross-entropy in nats with gradient, human captions first, and
        detached values per row, such as whether it was classified correctly."""
        ...


class Listener(Protocol):
    """A dual encoder: images and texts in one space."""

    name: str

    def encode_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm: from ``batch.inputs[name]`` if present, else from the cache by id."""
        ...

    def encode_ids(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, of images that were cached before."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm; the listener adds its own prompt prefix."""
        ...


E = TypeVar("E")


class NearImages(Protocol):
    """Which images look alike."""

    def of(self, ids: Sequence[str]) -> list[list[str]]:
        """Ids of the nearest images of each, nearest first, without the image itself and its duplicates."""
        ...


class Objective(Protocol[E]):
    """One published training method: an ``nn.Module`` whose children are what it trains.

    ``decomposes`` is false for a method whose loss is not a sum over micro-batches (in-batch negatives); the loop then
    refuses gradient accumulation. ``turns`` is how many optimiser updates a step takes: each has a ``prepare`` of its own,
    given what the one before returned, so that one part can learn before another one uses it. ``period`` is in how many steps
    every part learns once, where they take turns step by step: that number of steps in a row is logged.
    """

    decomposes: bool
    period: int
    turns: int
    averages_turns: bool

    def collect(self, batch: Batch, step: int) -> E:
        """Draw, score, take baselines: called in eval mode without gradients, once a micro-batch."""
        ...

    def prepare(self, experiences: list[E], gather: Gather) -> list[E]:
        """What needs the whole effective batch (normalise, contrast); returns the experiences to learn from."""
        ...

    def losses(self, experience: E) -> Iterator[StepOutput]:
        """Differentiable pieces; each is back-propagated before the next is asked for."""
        ...


class ObjectiveModule(nn.Module):
    """Base of the shipped objectives: an ``nn.Module`` whose ``prepare`` leaves the experiences as they are."""

    decomposes = True
    turns = 1
    period = 1
    averages_turns = False
    """Whether every turn trains the same parts, so that figures of turns are averaged; else each part has its own turn, and they
    are added."""
    shards = False
    """Whether its captioner can train in shards (``training.shard``): ``losses`` and ``prepare`` must call the captioner, and
    ``collect`` the reference, equally often on every process, whatever its images."""
    draws = True
    """Whether ``collect`` may read the captioner in another way on each process, as drawing does: its weights are then gathered
    there in sharded training."""
    revision = 1
    """To be raised by a method whose code begins to compute something else: kept results of it are then no longer reused."""

    def prepare(self, experiences: list[Any], gather: Gather) -> list[Any]:
        """The experiences, unchanged."""
        return experiences
