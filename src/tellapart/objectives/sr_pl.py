"""SR-PL: CIDEr and self-retrieval by a frozen listener as reward; images without captions have the second part alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner, Encoded
from tellapart.draws import base_seed
from tellapart.errors import UsageError
from tellapart.listeners.mining import SAME_ABOVE
from tellapart.objectives.common import rollout_logs, score
from tellapart.objectives.communication import AnyListener, Frozen, embed_captions, sampling
from tellapart.ops import reduce
from tellapart.ranges import NonNegativeFloat, PositiveInt, in_range
from tellapart.rewards.contrastive import image_keys
from tellapart.types import Batch, Gather, ObjectiveModule, Reward, Rollout, StepOutput


class UnlabelledImages(Protocol):
    """Images without captions, one for each training image."""

    def __call__(self, ids: Sequence[str], seed: int) -> Batch:
        """As many images as ``ids``, without references; each follows from the id and the seed."""
        ...


@dataclass(frozen=True)
class Group:
    """The training images of a micro-batch, or the unlabelled ones that joined them.

    Args:
        prefix: of what is logged.
        rollout: one drawn caption of each of B images.
        encoded: the images for the captioner, if they stay valid.
        natural: ``[B]`` twice, rewards of the drawn and the greedy captions; 0 where an image has no references.
        captions: ``[B, D]`` twice, the listener's embeddings of both.
        images: ``[B, D]``, the listener's embeddings.
        keys: ``[B]`` long, of the images.
        advantage: ``[B]``, made by ``prepare``.
        logs: values to log.
    """

    prefix: str
    rollout: Rollout
    encoded: Encoded | None
    natural: tuple[Tensor, Tensor]
    captions: tuple[Tensor, Tensor]
    images: Tensor
    keys: Tensor
    advantage: Tensor | None = None
    logs: dict[str, Tensor] = field(default_factory=dict)


class SRPL(ObjectiveModule):
    """SR-PL (Liu, Li, Shao, Chen & Wang, ECCV 2018), quoted in PSST's table: self-critical training on CIDEr and self-retrieval.

    The reward of caption c of image I is ``r = labelled * CIDEr - alpha * [m - s(c, I) + max_j s(c, I_j)]_+``, with cosines s
    of a frozen, pre-trained listener and all other images j of the step. ``L = token_mean(-(r(drawn) - r(greedy)) log p)``.
    One unlabelled image joins each training image; its caption has no CIDEr. It is a moderately hard negative: its rank by
    similarity to the training image's captions is within two limits (``tellapart.listeners.ranked``). Without unlabelled
    images the method is the paper's SR-FL.

    Departures:
        Images of a cosine of 0.9999 and more count as one picture, which is not a negative of itself.
        The margin is that of PSST's code.
        The paper was recalled, not read again: one sample per image, and the ranking by captions, may differ from it.

    Args:
        captioner: the model to train.
        reward: how natural a caption is, asked of captions of images with references only. The paper's is CIDEr-D.
        own_listener: frozen; any listener that reads captions.
        unlabelled: images without captions; none trains without (SR-FL).
        retrieval_weight: of self-retrieval in the reward, the paper's alpha; the natural reward has weight 1.
        margin: m, on the scale of cosines.
        max_new_tokens: longest caption in tokens, its EOS included.

    Raises:
        ValueError: a number cannot be used.

    Example::

        objective = SRPL(captioner, CiderD(frequencies), listener, unlabelled, retrieval_weight=1.0)
        train(objective, TrainingData(dataset, collate), TrainConfig(output_dir="runs/sr_pl", max_steps=100))
    """

    @in_range
    def __init__(
        self,
        captioner: Captioner,
        reward: Reward,
        own_listener: AnyListener,
        unlabelled: UnlabelledImages | None = None,
        *,
        retrieval_weight: NonNegativeFloat = 1.0,
        margin: NonNegativeFloat = 0.2,
        max_new_tokens: PositiveInt = 17,
    ) -> None:
        super().__init__()
        self.captioner, self.reward, self._listener = captioner, reward, Frozen(own_listener)
        self.unlabelled, self.retrieval_weight, self.margin = unlabelled, retrieval_weight, margin
        self.sampled = sampling(max_new_tokens)

    def collect(self, batch: Batch, step: int) -> list[Group]:
        """Draw a caption and the greedy one of each image and of the unlabelled images that join, score and embed them."""
        seed = base_seed()
        groups = [self._group("", batch)]
        if self.unlabelled is not None:
            joined = self.unlabelled(batch.ids, seed).to(groups[0].rollout.tokens.device)
            groups.append(self._group("unlabelled/", joined))
        return groups

    def _group(self, prefix: str, batch: Batch) -> Group:
        encoded, listener = self.captioner.encode(batch), self._listener.module
        drawn, greedy = self.captioner.generate_with_greedy(batch, self.sampled, encoded=encoded)
        images = listener.embed_images(batch)
        captions = tuple(embed_captions(listener, rollout).detach() for rollout in (drawn, greedy))
        (natural, parts), (baseline, _) = (self._natural(rollout) for rollout in (drawn, greedy))
        keys = image_keys(batch.ids).to(images.device)
        return Group(
            prefix,
            drawn,
            self.captioner.reusable(encoded),
            (natural, baseline),
            (captions[0], captions[1]),
            images.detach(),
            keys,
            logs=parts,
        )

    def _natural(self, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """``([N] rewards, logs)``; captions of images without references have 0, and are not asked for."""
        labelled = torch.tensor([bool(texts) for texts in rollout.references()], device=rollout.tokens.device)
        if not labelled.any():
            return torch.zeros(len(rollout), device=labelled.device), {}
        rows = labelled.nonzero().squeeze(1)
        rewards, parts = score(self.reward, rollout.select(rows))
        return rewards.new_zeros(len(rollout)).index_put((rows.to(rewards.device),), rewards), parts

    def prepare(self, experiences: list[list[Group]], gather: Gather) -> list[list[Group]]:
        """Rewards, with the images of the whole effective batch as negatives.

        Raises:
            UsageError: a step has a single picture.
        """
        groups = [group for experience in experiences for group in experience]
        images, keys = (gather(torch.cat(column)) for column in zip(*((g.images, g.keys) for g in groups), strict=True))
        return [[self._rewarded(group, images, keys) for group in experience] for experience in experiences]

    def _rewarded(self, group: Group, images: Tensor, keys: Tensor) -> Group:
        missed = [retrieval_loss(*self._similarities(group, c, images, keys), self.margin) for c in group.captions]
        drawn, greedy = (
            self_retrieval_reward(natural, loss.to(natural.device), self.retrieval_weight)
            for natural, loss in zip(group.natural, missed, strict=True)
        )
        own, rivals = self._similarities(group, group.captions[0], images, keys)
        logs = group.logs | rollout_logs(group.rollout, drawn)
        logs |= {"rewards/self_retrieval": -self.retrieval_weight * missed[0]}
        logs |= {"own_listener/hinge": missed[0], "own_listener/recall@1": (own > rivals.amax(dim=1)).float()}
        named = {group.prefix + name: values for name, values in logs.items()}
        return replace(group, advantage=drawn - greedy, logs=named)

    def _similarities(self, group: Group, captions: Tensor, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """``([B], [B, I])``: cosines of captions with their image and with all images; -inf for their own picture."""
        with torch.autocast(images.device.type, enabled=False):  # rounded, cosines would decide between near ties
            dtype = torch.promote_types(images.dtype, torch.float32)
            given, mine, texts = images.to(dtype), group.images.to(dtype), captions.to(dtype)
            same = (group.keys[:, None] == keys[None, :]) | (mine @ given.T >= SAME_ABOVE)
            if same.all(dim=1).any():
                raise UsageError(
                    "self-retrieval compares an image with others, but a step has a single picture: raise "
                    "per_device_train_batch_size."
                )
            return (texts * mine).sum(dim=1), (texts @ given.T).masked_fill(same, -torch.inf)

    def losses(self, experience: list[Group]) -> Iterator[StepOutput]:
        """One piece for the training images, and one for those that joined, weighted by their tokens."""
        for group in experience:
            assert group.advantage is not None
            logprobs = self.captioner(group.rollout, encoded=group.encoded).logprobs
            values = -group.advantage[:, None].to(logprobs) * logprobs
            loss, tokens = reduce(values, group.rollout.mask, "token_mean")
            yield StepOutput(loss, tokens, group.logs)


def retrieval_loss(own: Tensor, rivals: Tensor, margin: float) -> Tensor:
    """``[N]``: ``[m - s(c, I) + max_j s(c, I_j)]_+``.

    Args:
        own: ``[N]`` cosines of captions with their image.
        rivals: ``[N, K]`` cosines with other images; -inf for what does not count.
        margin: m.
    """
    return (margin - own + rivals.amax(dim=1)).clamp(min=0)


def self_retrieval_reward(natural: Tensor, loss: Tensor, weight: float) -> Tensor:
    """``[N]``: the natural reward (0 for images without captions) less ``weight`` times the retrieval loss."""
    return natural - weight * loss
