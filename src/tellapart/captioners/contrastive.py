"""Contrastive decoding: each word is chosen for what it says of the image and for how far it rules out look-alikes.

The incremental rational-speech-act speaker of Cohn-Gordon et al. (*Pragmatically Informative Image Captioning with
Character-Level Inference*, NAACL 2018), over a captioner's tokens. The emitter-suppressor beam search of Vedantam et al.
(*Context-aware Captions from Context-agnostic Supervision*, CVPR 2017) came before it; that one divides by the probability given
one other image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.shortlist import Shortlist
from tellapart.captioners.steps import Steps

if TYPE_CHECKING:
    from tellapart.captioners.families.base import Family


@dataclass(frozen=True)
class Contrast:
    """The images that captions are to rule out, and how much that counts.

    Args:
        distractors: ``[B, k]`` long, rows of a batch whose first B images are described.
        strength: the speaker's rationality (0 or more); 0 is ordinary decoding.

    Raises:
        ValueError: ``distractors`` is not of that shape, or ``strength`` is below 0.

    Example:
        >>> batch = collate([own, other])  # two look-alikes
        >>> captioner.generate(batch, Decoding(num_beams=5), contrast=Contrast(torch.tensor([[1]]), strength=1.0))
    """

    distractors: Tensor
    strength: float = 1.0

    def images(self) -> Tensor:
        """``[B, 1 + k]``: of each described image its own row, then those of its distractors."""
        own = torch.arange(len(self.distractors), device=self.distractors.device)[:, None]
        return torch.cat([own, self.distractors], dim=1)

    def __post_init__(self) -> None:
        if self.distractors.ndim != 2 or not self.distractors.shape[1]:
            raise ValueError("distractors must be of shape [B, k], with k at least 1")
        if self.strength < 0:
            raise ValueError(f"strength={self.strength} must be at least 0")


class Contrasted:
    """A model's next-word scores after weighing them against those for other images; takes a family's place in drawing.

    For an image with k distractors and the words ``c`` so far, the score of the word w is

        ``log p(w | own, c) + strength * log p(own | c, w)``,

    where ``p(own | c, w)`` is the posterior over the ``1 + k`` images, equally likely at the start, after all words. Drawing
    normalises the scores over words.

    Args:
        family: the model.
        contrast: the distractors and the strength.
        encoded: ``B * (1 + k)`` states, those of ``contrast.images()`` row by row.
    """

    def __init__(self, family: Family, contrast: Contrast, encoded: Encoded) -> None:
        self.family, self.strength = family, contrast.strength
        self._encoded, self._group = encoded, contrast.images().shape[1]
        self.eos, self.pad, self.never_drawn = family.eos, family.pad, family.never_drawn
        self._steps: ContrastedSteps | None = None

    def before_captions(self, encoded: Encoded) -> Tensor:
        """Those of the described images."""
        return self.family.before_captions(encoded)

    def steps(self, encoded: Encoded, count: int, longest: int, *, beams: bool = False) -> Steps:
        """Of the described images, whose states are ``encoded``, and of their distractors."""
        inner = self.family.steps(self._encoded, count, longest, beams=beams)
        self._steps = ContrastedSteps(self.family, inner, self._group, count)
        return self._steps

    def exact_logits(self, hidden: Tensor) -> Tensor:
        """``[n, V]`` scores, not normalised, for what ``ContrastedSteps`` gave."""
        assert self._steps is not None, "steps come first"
        own, posterior = self._steps.next_words(hidden)
        return own + self.strength * posterior

    def shortlist(self) -> Shortlist | None:
        """None: the posterior needs all logits."""
        return None


class ContrastedSteps(Steps):
    """Reads each caption as one of its own image and of every distractor.

    Args:
        family: the model.
        inner: steps over ``B * group`` images, ``count`` rows each.
        group: ``1 + k``.
        count: captions per described image.
    """

    def __init__(self, family: Family, inner: Steps, group: int, count: int) -> None:
        self._family, self._inner, self._group = family, inner, group
        size = len(inner.first) // group
        self.first = inner.first.unflatten(0, (size, group)).flatten(1)
        device = self.first.device
        self.image = torch.arange(size, device=device).repeat_interleave(count)
        # The inner row of each caption given each image of its group.
        rows = torch.arange(size * group * count, device=device).unflatten(0, (size, group, count))
        self._rows = rows.transpose(1, 2).flatten(0, 1)
        self._belief = self.first.new_full((size * count, group), 0.0, dtype=torch.float32)
        self._logprobs: Tensor | None = None  # [n, group, V] of the next word

    def next_words(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[n, V]`` log-probabilities given the own image, and log-posterior of that image after each word.

        Args:
            hidden: ``[n, group * D]``; of the first word one row per image.
        """
        logprobs = self._family.exact_logits(hidden.unflatten(1, (self._group, -1))).log_softmax(dim=2)
        first = self._logprobs is None
        belief = logprobs.new_zeros(logprobs.shape[:2]) if first else self._belief
        joint = belief[:, :, None] + logprobs
        self._logprobs = logprobs[self.image] if first else logprobs
        return logprobs[:, 0], joint[:, 0] - joint.logsumexp(dim=1)

    def read(self, words: Tensor) -> Tensor:
        """``[n, group * D]`` after every image's decoder has read the words."""
        assert self._logprobs is not None, "words are chosen by next_words"
        chosen = self._logprobs.gather(2, words[:, None, None].expand(-1, self._group, 1)).squeeze(2)
        self._belief = (self._belief + chosen).log_softmax(dim=1)
        inner = torch.empty(self._rows.numel(), dtype=torch.long, device=words.device)
        inner[self._rows] = words[:, None].expand(-1, self._group)
        return self._inner.read(inner)[self._rows].flatten(1)

    def keep(self, rows: Tensor) -> None:
        """The same rows of every image of their group."""
        wanted = self._rows[rows]
        kept = wanted.flatten().sort().values
        self._inner.keep(kept)
        self._rows = torch.searchsorted(kept, wanted)
        self.image = self.image[rows]
        self._take(rows)

    def follow(self, parent: Tensor) -> None:
        """Beams of an image continue one another given every image of the group."""
        inner = torch.empty(self._rows.numel(), dtype=torch.long, device=parent.device)
        inner[self._rows] = self._rows[parent]
        self._inner.follow(inner)
        self._take(parent)

    def _take(self, rows: Tensor) -> None:
        assert self._logprobs is not None
        self._belief, self._logprobs = self._belief[rows], self._logprobs[rows]
