"""What an actor-critic learns from: drawn captions with a return and an expectation for every token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.types import Rollout


class TokenFlags(Protocol):
    """Which tokens of captions are penalised (:class:`tellapart.rewards.penalties.Penalties`)."""

    def __call__(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """``(bad, repeated)``, each ``[N, T]`` bool."""
        ...


@dataclass(frozen=True)
class Experience:
    """Drawn captions of a micro-batch and what their tokens are worth.

    Args:
        rollout: the captions, image by image.
        encoded: the images, if they stay valid.
        returns: ``[N, T]``, 0 where masked.
        values: ``[N, T]``, what the critic expected, without gradient.
        advantage: ``[N, T]``, standardised over the effective batch; made by ``prepare``.
        pairs: ``[N, D]`` twice, embeddings of each caption's image and of the caption, if they are to be compared.
        logs: values to log.
    """

    rollout: Rollout
    encoded: Encoded | None
    returns: Tensor
    values: Tensor
    advantage: Tensor
    pairs: tuple[Tensor, Tensor] | None
    logs: dict[str, Tensor]


def cut(experience: Experience, images: int | None) -> Iterator[Experience]:
    """The experience of so many images after another."""
    total = len(experience.rollout.batch)
    if images is None or images >= total:
        yield experience
        return
    for first in range(0, total, images):
        chosen = torch.arange(first, min(first + images, total))
        place = experience.rollout.image
        rows = ((place >= first) & (place < first + images)).nonzero().flatten()
        part = experience.rollout.select(rows)
        width = part.mask.shape[1]
        yield replace(
            experience,
            rollout=replace(part, batch=part.batch.select(chosen), image=part.image - first),
            encoded=None if experience.encoded is None else experience.encoded.select(chosen.to(place.device)),
            returns=experience.returns[rows][:, :width],
            advantage=experience.advantage[rows][:, :width],
        )
