"""Shared by methods that train a captioner (speaker) with a listener: natural captions, and captions that tell images apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from tellapart.captioners.base import Captioner, Encoded
from tellapart.errors import UsageError
from tellapart.objectives.common import rollout_logs, score
from tellapart.ops import hardest_hinge, reduce
from tellapart.rewards.contrastive import image_keys
from tellapart.types import Batch, Decoding, Reward, Rollout, StepOutput

M = TypeVar("M")


class ReadsTokens(Protocol):
    """A listener that reads captions as ids of the captioner's vocabulary, such as every ``SoftListener``."""

    def embed_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm."""
        ...

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """``[N, D]``, unit norm, of ``[N, T]`` ids."""
        ...


@runtime_checkable
class ReadsTexts(Protocol):
    """A listener that reads captions as texts, such as any CLIP (``tellapart.listeners.trained.TrainedListener``)."""

    def embed_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm."""
        ...

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm."""
        ...


AnyListener = ReadsTokens | ReadsTexts


def embed_captions(listener: AnyListener, rollout: Rollout) -> Tensor:
    """``[N, D]``, unit norm, of drawn or human captions, as texts if the listener reads such, whoever wrote its vocabulary;
    with gradients where they are enabled."""
    if isinstance(listener, ReadsTexts):
        return listener.embed_texts(rollout.texts)
    return listener.embed_tokens(rollout.tokens, rollout.mask)


class Frozen(Generic[M]):
    """Holds a module that an objective uses and does not train, so that it is not a child of the objective.

    Args:
        module: on the device where it is to be used.
    """

    def __init__(self, module: M) -> None:
        self.module = module
        if isinstance(module, nn.Module):
            module.eval()


@dataclass(frozen=True)
class Natural:
    """One drawn caption of each image, and by how much its reward is above the greedy caption's.

    Args:
        rollout: the drawn captions, in the order of the images.
        advantage: ``[B]``, without gradient.
        logs: values to log, one per caption.
    """

    rollout: Rollout
    advantage: Tensor
    logs: dict[str, Tensor]


def sampling(max_new_tokens: int) -> Decoding:
    """One sample of the captioner's own distribution."""
    return Decoding(do_sample=True, max_new_tokens=max_new_tokens)


def natural(reward: Reward, rollout: Rollout, greedy: Tensor) -> Natural:
    """Drawn captions against the greedy ones (SCST: Rennie et al., CVPR 2017).

    Args:
        reward: higher is more natural; CIDEr-D in the papers.
        rollout: one caption per image.
        greedy: ``[B]`` rewards of the greedy captions.
    """
    rewards, logs = score(reward, rollout)
    logs |= rollout_logs(rollout, rewards)
    return Natural(rollout, rewards - greedy[rollout.image], logs)


def natural_loss(captioner: Captioner, spoken: Natural, encoded: Encoded | None) -> Tensor:
    """Scalar: the mean over all tokens of ``-advantage * log p`` (``token_mean``)."""
    logprobs = captioner(spoken.rollout, encoded=encoded).logprobs
    values = -spoken.advantage[:, None].to(logprobs) * logprobs
    total, tokens = reduce(values, spoken.rollout.mask, "token_mean")
    return total / tokens


def told_apart(images: Tensor, captions: Tensor, margin: float, ids: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
    """``([B] hinge of each image and its caption, logs)`` with the hardest other caption and image of the batch.

    Args:
        images: ``[B, D]``, unit norm.
        captions: ``[B, D]``, unit norm, one per image in the same order.
        margin: m of the hinge, on the scale of cosines.
        ids: of the images. One that is twice in the batch, as at the seam of two epochs, is not its own negative.

    Raises:
        UsageError: the batch has one image, though it may have it several times.
    """
    if len(set(ids)) < 2:
        raise UsageError(
            "the hinge loss compares an image with the others of its batch, but a step has a single one: raise "
            "per_device_train_batch_size."
        )
    keys = image_keys(ids).to(images.device)
    same = keys[:, None] == keys[None, :]
    # Rounded by autocast, cosines would decide between captions that are nearly as good.
    with torch.autocast(images.device.type, enabled=False):
        dtype = torch.promote_types(images.dtype, torch.float32)
        similarities = images.to(dtype) @ captions.to(dtype).T
        hinge = hardest_hinge(similarities, margin, same=same)
    others = similarities.detach().masked_fill(same, -torch.inf)
    found = similarities.detach().diagonal() > others.max(dim=0).values
    return hinge, {"own_listener/hinge": hinge.detach(), "own_listener/recall@1": found.float()}


def heard(listener: AnyListener, rollout: Rollout, margin: float) -> tuple[Tensor, dict[str, Tensor]]:
    """``told_apart`` of one caption per image, given as words; with gradients where they are enabled."""
    captions = embed_captions(listener, rollout)
    return told_apart(listener.embed_images(rollout.batch), captions, margin, rollout.batch.ids)


def on_its_own_scale(loss: Tensor, logs: dict[str, Tensor]) -> StepOutput:
    """A piece that enters the step's loss as it is: the loop divides by the summed weight, or by 1 if all weights are 0."""
    return StepOutput(loss, loss.new_zeros(()).detach(), logs)
