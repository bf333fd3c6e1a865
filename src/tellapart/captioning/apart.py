"""Telling the images of a collection apart without training: candidates are compared with look-alikes of their image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.contrastive import Contrast
from tellapart.captioners.families import require_several_images
from tellapart.captioning.defaults import (
    LOOKALIKES,
    LOOKALIKES_PROMPT,
    NUM_BEAMS,
    NUM_DISTRACTORS,
    REDRAW,
    REDRAW_ON,
    TOP_P_APART,
    WEIGHTS,
)
from tellapart.captioning.gate import Gate
from tellapart.errors import UsageError
from tellapart.listeners.among import Among, AmongLookalikes, EmbedIds
from tellapart.listeners.dual import DualMatcher
from tellapart.listeners.mining import mine
from tellapart.listeners.neighbours import Neighbours
from tellapart.rewards.similarity import Similarity
from tellapart.rewards.truth import Truth
from tellapart.types import Batch, Decoding, Rollout

if TYPE_CHECKING:
    from tellapart.captioners.huggingface import HuggingFaceCaptioner
    from tellapart.captioning.records import Caption, Item
    from tellapart.listeners.cache import NamedPicture
    from tellapart.listeners.clip import ClipListener
    from tellapart.rewards.truth import PairMatcher

Distractors = Callable[[Sequence["Item"]], list["Item"]]
"""A batch's images -> further images to read with them."""


WARMER = 0.2
"""By how much, as a share, the temperature rises from one new try to the next."""


@dataclass(frozen=True)
class Comparison:
    """How candidates of an image are drawn and compared.

    A candidate's value is the weighted sum of

    - ``likelihood``: log-probability of the image among it and its look-alikes, by the listener;
    - ``clip_s``: CLIP-S of image and candidate, by the listener;
    - ``fluency``: mean log-probability of the candidate's tokens, by the captioner;
    - ``truth``: log-probability that the candidate is true of the image, by a verifier, if there is one.

    Likelihood alone chooses false words that the look-alikes lack too; fluency and truth hold against that.

    Args:
        among: compares with look-alikes.
        similarity: CLIP-S by the same listener.
        truth: the reward of the same name, if there is a verifier.
        weights: of these four by name; 0 leaves one out.
        strength: of contrastive decoding; 0 is ordinary decoding.
        num_distractors: look-alikes that contrastive decoding rules out.
        lookalikes_in_prompt: look-alikes that an instruct captioner is shown after the image; 0 shows none.
        lookalikes_prompt: what it is then asked.
    """

    among: AmongLookalikes
    similarity: Similarity
    truth: Truth | None = None
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    strength: float = 0.0
    num_distractors: int = NUM_DISTRACTORS
    lookalikes_in_prompt: int = 0
    lookalikes_prompt: str = LOOKALIKES_PROMPT

    @classmethod
    def by(
        cls,
        listener: ClipListener,
        lookalikes: Mapping[str, Sequence[str]],
        *,
        verifier: PairMatcher | DualMatcher | None = None,
        weights: Mapping[str, float] = WEIGHTS,
        strength: float = 0.0,
        num_distractors: int = NUM_DISTRACTORS,
        lookalikes_in_prompt: int = 0,
        lookalikes_prompt: str = LOOKALIKES_PROMPT,
        embed: EmbedIds | None = None,
    ) -> Comparison:
        """With a listener and perhaps a verifier.

        Raises:
            UsageError: a weight is of nothing that is compared, a number is too small, two ways to draw are asked for, or
                listener or verifier cannot compare.
        """
        require_at_least("strength", strength, 0)
        require_at_least("num_distractors", num_distractors, 1)
        require_at_least("lookalikes_in_prompt", lookalikes_in_prompt, 0)
        if strength and lookalikes_in_prompt:
            raise UsageError(
                "contrastive decoding reads each image in a prompt of its own, so strength does not go with "
                "lookalikes_in_prompt: leave one of the two out."
            )
        unknown = [name for name in weights if name not in WEIGHTS]
        if unknown:
            raise UsageError(f"a weight is given for {unknown[0]!r}: choose from {', '.join(WEIGHTS)}.")
        if isinstance(verifier, DualMatcher):
            raise no_verifier(verifier.listener.source)
        return cls(
            AmongLookalikes(listener, lookalikes, embed=embed),
            Similarity(listener),
            None if verifier is None else Truth(verifier),
            {**WEIGHTS, **weights},
            strength=strength,
            num_distractors=num_distractors,
            lookalikes_in_prompt=lookalikes_in_prompt,
            lookalikes_prompt=lookalikes_prompt,
        )

    @property
    def verifier(self) -> PairMatcher | None:
        """What ``truth`` is by."""
        return None if self.truth is None else self.truth.matcher

    def clip_s(self, among: Among) -> Tensor:
        """``[N]`` float32, of the captions that were compared."""
        return self.similarity.score(among.cosine)

    def draw(
        self,
        captioner: HuggingFaceCaptioner,
        batch: Batch,
        described: int,
        decoding: Decoding,
        encoded: Encoded,
    ) -> Rollout:
        """Candidates of the first images of a batch: by contrastive decoding, by a prompt with look-alikes, or ordinary ones.

        Args:
            captioner: draws.
            batch: the images, and after them those of ``distractors``.
            described: how many of the first get candidates.
            decoding: how.
            encoded: of the batch.

        Raises:
            UsageError: the captioner's prompts cannot hold these images.
        """
        if not self.lookalikes_in_prompt:
            return captioner.generate(batch, decoding, encoded=encoded, contrast=self.contrast(batch, described))
        together = captioner.encode_together(
            batch, self.shown(batch, described), self.lookalikes_prompt, encoded=encoded
        )
        return captioner.generate(batch.select(range(described)), decoding, encoded=together)

    def asks(self, captioner: HuggingFaceCaptioner) -> str:
        """The prompt that candidates answer, which no caption should repeat."""
        return self.lookalikes_prompt if self.lookalikes_in_prompt else captioner.family.prompt

    def shown(self, batch: Batch, described: int) -> list[list[int]]:
        """For each described image the rows that its prompt shows: its own, then those of its look-alikes, nearest first."""
        row = {name: i for i, name in enumerate(batch.ids)}
        return [
            [own, *(row[other] for other in self._read_with(name) if other in row)]
            for own, name in enumerate(batch.ids[:described])
        ]

    def _read_with(self, name: str) -> Sequence[str]:
        """The look-alikes that are read to draw candidates of an image."""
        count = self.num_distractors if self.strength else self.lookalikes_in_prompt
        return self.among.lookalikes.get(name, ())[:count]

    def contrast(self, batch: Batch, described: int) -> Contrast | None:
        """Which rows of a batch contrastive decoding rules out; the image itself fills the place of a missing look-alike."""
        if not self.strength:
            return None
        row = {name: i for i, name in enumerate(batch.ids)}
        rows = []
        for own, name in enumerate(batch.ids[:described]):
            rows.append([row.get(other, own) for other in self._read_with(name)] or [own])
        filled = [[*others, *[own] * (max(map(len, rows)) - len(others))] for own, others in enumerate(rows)]
        return Contrast(torch.tensor(filled), self.strength)

    def distractors(self, ids: Sequence[str]) -> list[str]:
        """Ids of the images that a batch of ``ids`` needs for ``draw``, beyond these."""
        near = (other for name in ids for other in self._read_with(name))
        return [name for name in dict.fromkeys(near) if name not in set(ids)]

    @torch.no_grad()
    def __call__(self, captioner: HuggingFaceCaptioner, rollout: Rollout, encoded: Encoded) -> tuple[Tensor, Among]:
        """``[N]`` values, higher is better, and what the listener says."""
        among = self.among(rollout)
        parts = {"likelihood": among.likelihood, "clip_s": self.clip_s(among)}
        if self.weights["fluency"]:
            logprobs = captioner(rollout, encoded=encoded).logprobs
            parts["fluency"] = (logprobs.sum(dim=1) / rollout.lengths.clamp(min=1)).to(rollout.image.device)
        if self.truth is not None and self.weights["truth"]:
            parts["truth"] = self.truth(rollout)
        value = torch.zeros(len(rollout), device=rollout.image.device)
        for name, part in parts.items():
            value = value + self.weights[name] * part.to(value)
        return value, among


def require_at_least(name: str, value: float, least: int) -> None:
    """Raise where a number is too small.

    Raises:
        UsageError: naming it.
    """
    if not value >= least:
        raise UsageError(f"{name} is {value}: it must be at least {least}.")


def no_verifier(name: str) -> UsageError:
    """The error for a verifier that compares vectors."""
    return UsageError(
        f"the verifier {name} has cosines and does not decide what is true: name a BLIP or BLIP-2 with a matching head, or an "
        "instruct model."
    )


def warmer(sampling: Decoding, attempt: int) -> Decoding:
    """How a confused image is captioned again: with each attempt more samples, at a higher temperature."""
    return replace(
        sampling,
        num_return_sequences=attempt * sampling.num_return_sequences,
        temperature=sampling.temperature * (1 + WARMER * attempt),
    )


def find_lookalikes(listener: ClipListener, images: Iterable[NamedPicture], k: int = LOOKALIKES) -> Neighbours:
    """The ``k`` pictures of a collection that look most like each, copies of a picture left out.

    Raises:
        UsageError: an image cannot be read, or all are one picture.
    """
    return mine(listener, images, k, fewer=True)


class Apart:
    """Captions the images of a collection so that each differs from its look-alikes', without training.

    1. The listener finds each image's look-alikes in the collection.
    2. The captioner searches ``num_beams`` candidates per image: with ``strength`` by contrastive decoding, with
       ``lookalikes_in_prompt`` by a prompt that shows look-alikes.
    3. The candidate with the highest value (``Comparison``) is kept.
    4. Where a look-alike suits the caption at least as well as the image, candidates are sampled and compared up to ``redraw``
       times more.

    Args:
        captioner: any.
        listener: a CLIP or SigLIP.
        verifier: a matcher that tells true captions from false ones. Captions are more often true with one.
        weights: of truth, likelihood, CLIP-S and fluency; those not named keep their defaults.
        lookalikes: images that each one is compared with.
        num_beams: candidates per image.
        redraw: further tries for a confused image.
        strength: of contrastive decoding; 0 is ordinary decoding.
        num_distractors: look-alikes that contrastive decoding rules out.
        lookalikes_in_prompt: look-alikes that an instruct captioner is shown after the image; 0 shows none.
        lookalikes_prompt: what it is then asked.
        max_new_tokens: longest caption in tokens.
        min_new_tokens: shortest caption in tokens.
        no_repeat_ngram_size: no sequence of this many tokens may occur twice in a caption; 0 allows repetition.
        seed: of sampling, with the image's id.
        batch_size: images captioned at once.

    Raises:
        UsageError: a weight is of nothing that is compared, a number is too small, listener or verifier cannot compare, or the
            captioner's prompts hold one image and ``lookalikes_in_prompt`` is above 0.

    Example:
        >>> apart = Apart(load_captioner("Salesforce/blip-image-captioning-base"), load_listener("openai/clip-vit-base-patch32"))
        >>> for caption in apart("photos/"):
        ...     print(caption.id, caption.caption, caption.margin, caption.rival)
    """

    def __init__(
        self,
        captioner: HuggingFaceCaptioner,
        listener: ClipListener,
        *,
        verifier: PairMatcher | None = None,
        weights: Mapping[str, float] = WEIGHTS,
        lookalikes: int = LOOKALIKES,
        num_beams: int = NUM_BEAMS,
        redraw: int = REDRAW,
        strength: float = 0.0,
        num_distractors: int = NUM_DISTRACTORS,
        lookalikes_in_prompt: int = 0,
        lookalikes_prompt: str = LOOKALIKES_PROMPT,
        max_new_tokens: int = 40,
        min_new_tokens: int = 0,
        no_repeat_ngram_size: int = 0,
        seed: int = 42,
        batch_size: int = 16,
    ) -> None:
        """See the class."""
        for name, value, least in (
            ("lookalikes", lookalikes, 1),
            ("num_beams", num_beams, 1),
            ("redraw", redraw, 0),
            ("max_new_tokens", max_new_tokens, 1),
            ("batch_size", batch_size, 1),
        ):
            require_at_least(name, value, least)
        compare = partial(
            Comparison.by,
            listener,
            verifier=verifier,
            weights=weights,
            strength=strength,
            num_distractors=num_distractors,
            lookalikes_in_prompt=lookalikes_in_prompt,
            lookalikes_prompt=lookalikes_prompt,
        )
        compare({})  # raises what is wrong with these
        if lookalikes_in_prompt:
            require_several_images(captioner.family.model.config)
        self.captioner, self.listener, self.verifier, self._compare = captioner, listener, verifier, compare
        self.lookalikes, self.redraw, self.seed, self.batch_size = lookalikes, redraw, seed, batch_size
        self.beams = Decoding(
            num_beams=num_beams,
            num_return_sequences=num_beams,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            no_repeat_ngram_size=no_repeat_ngram_size,
        )
        self.samples = replace(self.beams, num_beams=1, do_sample=True, top_p=TOP_P_APART)

    def __call__(self, images: str | Path | Iterable[NamedPicture]) -> list[Caption]:
        """One caption per image, in order; images that cannot be read have an ``error`` instead.

        Args:
            images: a data set, or the path of an image folder or of a data set.

        Raises:
            UsageError: fewer than two different pictures can be read.
        """
        with self.listener.other_images():  # ids are those of this collection, not of earlier ones
            return self._told_apart(_items(images))

    def _told_apart(self, items: Sequence[Item]) -> list[Caption]:
        """One caption per image, in order."""
        from tellapart.captioning.collection import Pace, caption_items
        from tellapart.captioning.draw import Drawer, Drawing
        from tellapart.captioning.read import Reader
        from tellapart.captioning.serve import Station

        near = readable_lookalikes(self.listener, items, self.lookalikes)
        comparison = self._compare(dict(zip(near.ids, near.of(near.ids), strict=True)))
        drawing = Drawing(
            decoding=self.beams,
            sampling=self.samples,
            seed=self.seed,
            resample=self.redraw,
            resample_on=REDRAW_ON,
            gate=Gate(prompt=comparison.asks(self.captioner)),
            apart=comparison,
        )
        processors = {self.captioner.name: self.captioner.process}
        processors |= {} if self.verifier is None else {self.verifier.name: self.verifier.process}
        reader = Reader(processors, distractors=distractor_items(comparison, items))
        station = Station(reader, Drawer(self.captioner, drawing))
        drawn: dict[str, Caption] = {}
        pace = Pace(batch_size=self.batch_size)
        caption_items(items, lambda *_: station, pace, report=lambda one: drawn.__setitem__(one.id, one))
        return [drawn[item.id] for item in items]


def _items(images: str | Path | Iterable[NamedPicture]) -> list[Item]:
    from tellapart.captioning.plan import plan
    from tellapart.captioning.records import Item

    if isinstance(images, str | Path):
        return plan([str(images)])
    return [Item(example.id, example.image, example.id) for example in images]  # type: ignore[arg-type]


def readable_lookalikes(listener: ClipListener, items: Sequence[Item], k: int) -> Neighbours:
    """Look-alikes of the images that can be read.

    Raises:
        UsageError: no two different pictures can be read.
    """
    from tellapart.data.inspection import inspect_all

    found = inspect_all([item.image for item in items])
    readable = [item for item, one in zip(items, found, strict=True) if one.broken is None]
    if len(readable) < 2:
        raise UsageError(
            f"telling images apart needs at least two that can be read, but there are {len(readable)}: name more images."
        )
    return find_lookalikes(listener, readable, k)


def distractor_items(comparison: Comparison, items: Sequence[Item]) -> Distractors | None:
    """Images that are read in addition to a batch: look-alikes that contrastive decoding rules out or a prompt shows."""
    if not comparison.strength and not comparison.lookalikes_in_prompt:
        return None
    by_id = {item.id: item for item in items}
    return lambda batch: [by_id[name] for name in comparison.distractors([item.id for item in batch]) if name in by_id]
