"""A reward for telling images apart: the log-probability of the image given the caption, among thousands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tellapart.ranges import NegativeFloat, in_range
from tellapart.types import Rollout

if TYPE_CHECKING:
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.late import LateListener


class Likelihood:
    """``max(log softmax over images of s(image, caption) at the caption's own image, floor)`` in nats.

    s is the listener's similarity at its own temperature (CLIP: cosine times ``exp(logit_scale)``), or the log-probability of a
    late-interaction listener. The images are a gallery and the caption's own. Unlike a similarity it rewards only what other
    images lack, and unlike contrasts within a batch it does not depend on the batch.

    Each distinct caption of a step is compared with all of the gallery, which takes 8 bytes per image: thousands cost a dual
    encoder almost nothing; for a late-interaction listener a thousand are enough.

    Args:
        listener: a frozen dual encoder or late-interaction listener that has the gallery's images cached, and those to come.
        gallery: image ids, such as those of the training images; an id that occurs twice counts once.
        floor: the lowest value, below 0.

    Raises:
        ValueError: ``floor`` is not below 0.

    Example:
        >>> listener.cache_images(dataset)
        >>> Likelihood(listener, dataset.ids)(rollout)
    """

    @in_range
    def __init__(
        self, listener: ClipListener | LateListener, gallery: Sequence[str], *, floor: NegativeFloat = -12.0
    ) -> None:
        self.listener, self.floor = listener, floor
        self._gallery = list(dict.fromkeys(gallery))
        self._known = set(self._gallery)
        self._compare = comparison(listener)

    @torch.no_grad()
    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient, whatever autocast the caller is in.

        Raises:
            UsageError: the listener does not know an image.
        """
        ids, distinct = rollout.ids(), list(dict.fromkeys(rollout.texts))
        images = [*self._gallery, *dict.fromkeys(name for name in ids if name not in self._known)]
        row, column = ({name: i for i, name in enumerate(names)} for names in (distinct, images))
        rows = torch.tensor([row[text] for text in rollout.texts])
        logits = self._compare(distinct, images)
        total = logits[:, : len(self._gallery)].logsumexp(dim=1).cpu()[rows]
        own = logits.cpu()[rows, torch.tensor([column[name] for name in ids])]
        inside = torch.tensor([name in self._known for name in ids])
        total = torch.where(inside, total, torch.logaddexp(total, own))
        return (own - total).clamp(min=self.floor).to(rollout.image.device)


Compare = Callable[[list[str], list[str]], Tensor]
"""N texts and M image ids -> ``[N, M]`` float32 logits."""


def comparison(listener: ClipListener | LateListener) -> Compare:
    """How a listener compares texts with images that it knows, outside of any autocast: a dual encoder at its own temperature, a
    late-interaction listener by log-probabilities."""
    from tellapart.listeners.late import LateListener  # and transformers, which the options of a recipe do without

    if isinstance(listener, LateListener):
        return listener.logprobs
    scale = listener.logit_scale.detach().exp()

    def compare(texts: list[str], ids: list[str]) -> Tensor:
        # In bfloat16 the logits of look-alikes, tens with differences of tenths, would be rounded to steps of an eighth.
        with torch.autocast(listener.device.type, enabled=False):
            return (scale * listener.encode_texts(texts) @ listener.encode_ids(ids).T).float()

    return compare
