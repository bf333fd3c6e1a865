"""Drawing captions: the captioner, the choice among several, and new tries for those that fail the gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioning.apart import Comparison, warmer
from tellapart.captioning.gate import CONFUSED, SEVERITY, Gate
from tellapart.captioning.records import Caption
from tellapart.captioning.style import Finish
from tellapart.captioning.summary import Summary
from tellapart.draws import mix_seeds, seed_torch
from tellapart.errors import UsageError
from tellapart.types import Batch, Decoding, Reward, Rollout


@dataclass(frozen=True)
class Drawing:
    """How captions are drawn and judged.

    Args:
        decoding: of the first try.
        sampling: of the further ones.
        seed: with the image's id and the try it decides what is sampled.
        resample: how many further tries a failing caption has.
        resample_on: the faults that call for them.
        finish: post-processing.
        gate: what fails.
        reward: chooses among several captions of an image; higher is better.
        summarize: writes one caption from all captions of an image, which become its candidates.
        match: CLIP-S of image and caption, for the gate and the review; ``apart`` has its own.
        keep_all: return all captions of an image, not only the chosen one.
        apart: chooses among several captions of an image by its look-alikes, in place of ``reward``.
    """

    decoding: Decoding
    sampling: Decoding
    seed: int = 42
    resample: int = 0
    resample_on: tuple[str, ...] = SEVERITY
    finish: Finish = field(default_factory=Finish)
    gate: Gate = field(default_factory=Gate)
    reward: Reward | None = None
    summarize: Callable[[Sequence[Sequence[str]]], list[Summary]] | None = None
    match: Reward | None = None
    keep_all: bool = False
    apart: Comparison | None = None


@dataclass(frozen=True)
class _Summarized:
    """What a summary was made of, or why there is none."""

    texts: tuple[str, ...]
    error: str | None

    def of(self, summary: Caption) -> Caption:
        """The summary with the captions as candidates without a value; without it, the error."""
        if self.error is not None:
            return Caption(summary.id, error=self.error)
        return replace(summary, candidates=tuple((text, None) for text in self.texts))


class Drawer:
    """Captions batches; what an image is given depends on the image, its id and the settings, not on the batch.

    Args:
        captioner: draws.
        how: the settings.
    """

    def __init__(self, captioner: HuggingFaceCaptioner, how: Drawing) -> None:
        self.captioner, self.how = captioner.eval(), how
        self.device = next(captioner.parameters()).device

    def __call__(self, batch: Batch, described: int | None = None) -> list[Caption]:
        """One caption per image, in the batch's order; a batch too large for the accelerator's memory is halved.

        Args:
            batch: the images, and the look-alikes that are read with them.
            described: how many of the first are captioned; none: all of them.

        Raises:
            UsageError: a single image is too large for the memory.
        """
        described = len(batch) if described is None else described
        try:
            return self._captions(batch.to(self.device), described)
        except torch.OutOfMemoryError as error:
            if described == 1:
                raise UsageError(
                    f"the memory of {self.device} is too small for one image: choose a smaller model, fewer --n or --dtype "
                    "bfloat16."
                ) from error
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        half = described // 2
        left, right = self._part(batch, range(half)), self._part(batch, range(half, described))
        return [*self(left, half), *self(right, described - half)]

    def _part(self, batch: Batch, rows: Sequence[int]) -> Batch:
        """The images at these rows, and after them the look-alikes that are read with them."""
        names = [batch.ids[row] for row in rows]
        wanted = set() if self.how.apart is None else set(self.how.apart.distractors(names))
        return batch.select([*rows, *(row for row, name in enumerate(batch.ids) if name in wanted)])

    def _captions(self, batch: Batch, described: int) -> list[Caption]:
        drawn = self._draw(batch, described, self.how.decoding, 0)
        for attempt in range(1, self.how.resample + 1):
            failing = [row for row, own in enumerate(drawn) if set(own[0].flags) & set(self.how.resample_on)]
            if not failing:
                break
            sampling = self.how.sampling if self.how.apart is None else warmer(self.how.sampling, attempt)
            again = self._draw(self._part(batch, failing), len(failing), sampling, attempt)
            for row, own in zip(failing, again, strict=True):
                drawn[row] = self._after(drawn[row], own)
        chosen = map(self._chosen, drawn)
        return [replace(caption, caption=self.how.finish.written(caption.caption)) for caption in chosen]

    def _after(self, before: list[Caption], again: list[Caption]) -> list[Caption]:
        """The better of two tries: that with a caption without faults; compared with look-alikes, both together."""
        if self.how.apart is None:
            return before if again[0].flags or again[0].error else again
        return self._ranked([*before, *again])

    def _chosen(self, ranked: Sequence[Caption]) -> Caption:
        """The best caption, with all of them if they were asked for."""
        if not self.how.keep_all or len(ranked) == 1:
            return ranked[0]
        return replace(ranked[0], candidates=tuple((caption.caption, caption.score or 0.0) for caption in ranked))

    def _draw(self, batch: Batch, described: int, decoding: Decoding, attempt: int) -> list[list[Caption]]:
        """The captions of each described image in one try, best first, without prefix and suffix."""
        how = self.how
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            seed_torch(mix_seeds(how.seed, "caption", attempt))
            if how.apart is None:
                rollout = self.captioner.generate(batch, decoding)
            else:
                encoded = self.captioner.encode(batch)
                rollout = how.apart.draw(self.captioner, batch, described, decoding, encoded)
            count, summaries = decoding.num_return_sequences, list[_Summarized]()
            if how.summarize is not None:
                rollout, summaries = self._summarized(rollout, count)
                count = 1
        raw = [" ".join(text.split()) for text in rollout.texts]
        finished = [how.finish(text, finished=end) for text, end in zip(raw, rollout.finished.tolist(), strict=True)]
        rollout = replace(rollout, texts=[caption.text for caption in finished])
        if how.apart is None:
            among, scores, margins = None, _values(how.reward, rollout), _values(None, rollout)
            matches = scores if how.match is how.reward else _values(how.match, rollout)
        else:
            value, among = how.apart(self.captioner, rollout, encoded.select(range(described)))
            scores, matches, margins = map(_rounded, (value, how.apart.clip_s(among), among.margin))
        drawn = [
            Caption(
                id=name,
                caption=caption.text,
                raw=text,
                flags=how.gate.faults(caption.text, raw=text, finished=caption.whole, match=match, margin=margin),
                score=score,
                match=match,
                margin=margin,
                rival=None if among is None else among.rival[row],
                attempt=attempt,
            )
            for row, (name, caption, text, score, match, margin) in enumerate(
                zip(rollout.ids(), finished, raw, scores, matches, margins, strict=True)
            )
        ]
        if how.summarize is not None:
            return [[one.of(caption)] for one, caption in zip(summaries, drawn, strict=True)]
        groups = [drawn[first : first + count] for first in range(0, len(drawn), count)]
        chooses = how.reward is not None or how.apart is not None
        return [self._ranked(own) if chooses else own[:1] for own in groups]

    def _summarized(self, rollout: Rollout, count: int) -> tuple[Rollout, list[_Summarized]]:
        """One summary per image in place of its captions, and what it was made of."""
        assert self.how.summarize is not None
        texts = [" ".join(text.split()) for text in rollout.texts]
        groups = [texts[first : first + count] for first in range(0, len(texts), count)]
        summaries = self.how.summarize(groups)
        first = rollout.select(range(0, len(texts), count))
        ended = torch.tensor([summary.finished for summary in summaries], device=first.finished.device)
        written = replace(first, texts=[summary.text for summary in summaries], finished=ended)
        about = [
            f"{image} has no summary: {one.error}" if one.error else None
            for image, one in zip(first.ids(), summaries, strict=True)
        ]
        return written, [_Summarized(tuple(group), error) for group, error in zip(groups, about, strict=True)]

    def _ranked(self, captions: Sequence[Caption]) -> list[Caption]:
        """Those of the asked length first, then those without faults, then by score; equals keep their order.

        Compared with look-alikes, a caption that suits one of them better is not worse for that: its score says so already, and a
        retriever that cannot see what tells the images apart would choose what is false.
        """
        excused = set() if self.how.apart is None else {CONFUSED}

        def rank(caption: Caption) -> tuple[bool, bool, float]:
            other_length = self.how.gate.misses_length(caption.caption)
            return other_length, bool(set(caption.flags) - excused), -(caption.score or 0.0)

        return sorted(captions, key=rank)


def _values(reward: Reward | None, rollout: Rollout) -> list[float | None]:
    """A value per caption, or none."""
    return [None] * len(rollout) if reward is None else _rounded(reward(rollout))


def _rounded(values: Tensor) -> list[float | None]:
    """As far as float32 can tell."""
    return [round(value, 6) for value in values.tolist()]
