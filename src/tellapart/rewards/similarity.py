"""Rewards from the cosine of a caption and its image."""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.listeners.kinds import require_cosines
from tellapart.types import Listener, Rollout


class Similarity:
    """CLIP-S ``= w * max(cos(image, caption), 0)`` (Hessel et al. 2021, section 3).

    With the encoder of PAC-S and ``weight=2`` this is PAC-S. The listener puts its own prompt before the caption.

    Args:
        listener: a frozen dual encoder.
        weight: w.
        clamp: raise negative cosines to 0, as published; without it the reward is ``w * cos``.
    """

    def __init__(self, listener: Listener, *, weight: float = 2.5, clamp: bool = True) -> None:
        require_cosines(listener, "CLIP-S")
        self.listener, self.weight, self.clamp = listener, weight, clamp

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        with torch.no_grad():
            return self.score(self._cosines(rollout, self.listener.encode_texts(rollout.texts))).to(
                rollout.image.device
            )

    def score(self, cosines: Tensor) -> Tensor:
        """CLIP-S of cosines of any shape."""
        return self.weight * (cosines.clamp(min=0) if self.clamp else cosines)

    def _cosines(self, rollout: Rollout, texts: Tensor) -> Tensor:
        images = self.listener.encode_images(rollout.batch)
        return (images[rollout.image.to(images.device)].float() * texts.float()).sum(dim=1)


class RefSimilarity(Similarity):
    """RefCLIP-S: harmonic mean of CLIP-S and the highest cosine with a reference (clamped at 0, without w); 0 if
    either is 0 (Hessel et al. 2021, section 3.1). References are embedded with the listener's prompt, as captions are.

    Args:
        listener: a frozen dual encoder.
        weight: w of CLIP-S.
    """

    def __init__(self, listener: Listener, *, weight: float = 2.5) -> None:
        super().__init__(listener, weight=weight)

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient.

        Raises:
            UsageError: an image has no references.
        """
        references = rollout.references()
        for name, texts in zip(rollout.ids(), references, strict=True):
            if not texts:
                raise UsageError(
                    f"RefCLIP-S needs references, but image {name!r} has none: use CLIP-S, or add captions."
                )
        with torch.no_grad():
            every = [text for texts in references for text in texts]
            embeddings = self.listener.encode_texts([*rollout.texts, *every])
            captions, others = embeddings[: len(rollout)], embeddings[len(rollout) :]
            image = self.score(self._cosines(rollout, captions))
            counts = torch.tensor([len(texts) for texts in references], device=others.device)
            owner = torch.arange(len(rollout), device=others.device).repeat_interleave(counts)
            cosines = (captions[owner].float() * others.float()).sum(dim=1).clamp(min=0)
            text = torch.zeros_like(image).scatter_reduce(0, owner, cosines, "amax")
            both = (image > 0) & (text > 0)
            return torch.where(both, 2 * image * text / (image + text).where(both, 1), 0).to(rollout.image.device)
