"""A reward for telling an image from those that look like it: its log-probability among them, given the caption."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tellapart.ranges import NegativeFloat, in_range
from tellapart.rewards.likelihood import comparison
from tellapart.types import NearImages, Rollout

if TYPE_CHECKING:
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.late import LateListener


class Lookalikes:
    """``max(log softmax over the image and its look-alikes of s(image, caption) at the image itself, floor)`` in nats.

    s is that of ``Likelihood``, which compares a caption with the same images whatever it describes. Here every image has its
    own, those that it is mistaken for, as WTF-RL contrasts a caption with mined neighbours (Chaffin et al., 2024). Among k
    look-alikes a caption that fits all of them equally has ``-log(k + 1)``.

    Args:
        listener: a frozen dual encoder or late-interaction listener that has the images and their look-alikes cached.
        neighbours: gives the look-alikes of an image, the same number for each.
        floor: the lowest value, below 0.

    Raises:
        ValueError: ``floor`` is not below 0.

    Example:
        >>> listener.cache_images(dataset)
        >>> Lookalikes(listener, mine(listener, dataset, 20))(rollout)
    """

    @in_range
    def __init__(
        self, listener: ClipListener | LateListener, neighbours: NearImages, *, floor: NegativeFloat = -12.0
    ) -> None:
        self.listener, self.neighbours, self.floor = listener, neighbours, floor
        self._compare = comparison(listener)

    @torch.no_grad()
    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient, whatever autocast the caller is in.

        Raises:
            UsageError: an image has no look-alikes, or the listener does not know one.
        """
        own = list(rollout.batch.ids)
        groups = [[name, *near] for name, near in zip(own, self.neighbours.of(own), strict=True)]
        distinct, images = list(dict.fromkeys(rollout.texts)), list(dict.fromkeys(chain(*groups)))
        row, column = ({name: i for i, name in enumerate(names)} for names in (distinct, images))
        logits = self._compare(distinct, images).cpu()[torch.tensor([row[text] for text in rollout.texts])]
        columns = torch.tensor([[column[name] for name in group] for group in groups])
        among = logits.gather(1, columns[rollout.image.cpu()])
        return among.log_softmax(dim=1)[:, 0].clamp(min=self.floor).to(rollout.image.device)
