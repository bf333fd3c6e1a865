"""A reward for telling images apart: the log-probability of the image given the caption, among thousands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.types import Rollout


class Likelihood:
    """``max(log softmax over a gallery of s(image, caption) at the caption's own image, floor)`` in nats.

    s is the listener's similarity at its own temperature (CLIP: cosine times ``exp(logit_scale)``), or the log-probability of a
    late-interaction listener. Unlike a similarity it is paid only for what other images lack, and unlike contrasts within a
    batch it does not depend on the batch. Each image counts once, however often its id occurs.

    The gallery is read when the reward is made and takes ``8 N`` bytes per caption of a step while it is scored.

    Args:
        listener: a frozen dual encoder or late-interaction listener that has the gallery's images cached.
        gallery: image ids, those of all images that will come among them; usually the training images.
        floor: the lowest value, below 0.

    Raises:
        ValueError: ``floor`` is not below 0.

    Example:
        >>> listener.cache_images(dataset)
        >>> Likelihood(listener, dataset.ids)(rollout)
    """

    def __init__(self, listener: ClipListener | LateListener, gallery: Sequence[str], *, floor: float = -12.0) -> None:
        if floor >= 0:
            raise ValueError(f"floor={floor} must be below 0")
        self.listener, self.floor = listener, floor
        self._gallery = list(dict.fromkeys(gallery))
        self._column = {name: i for i, name in enumerate(self._gallery)}
        self._images = None if isinstance(listener, LateListener) else listener.encode_ids(self._gallery)

    @torch.no_grad()
    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient.

        Raises:
            UsageError: an image is not in the gallery.
        """
        ids = rollout.ids()
        unknown = next((name for name in ids if name not in self._column), None)
        if unknown is not None:
            raise UsageError(f"image {unknown!r} is not in the gallery of the likelihood reward: add its id to it.")
        distinct = list(dict.fromkeys(rollout.texts))
        row = {text: i for i, text in enumerate(distinct)}
        logprobs = torch.log_softmax(self._logits(distinct).float(), dim=1)
        rows = torch.tensor([row[text] for text in rollout.texts], device=logprobs.device)
        columns = torch.tensor([self._column[name] for name in ids], device=logprobs.device)
        return logprobs[rows, columns].clamp(min=self.floor).to(rollout.image.device)

    def _logits(self, texts: list[str]) -> Tensor:
        """``[T, M]`` of T texts with the gallery's M images."""
        listener: Any = self.listener
        if self._images is None:
            return listener.logprobs(texts, self._gallery)
        return listener.logit_scale.exp() * listener.encode_texts(texts) @ self._images.T
