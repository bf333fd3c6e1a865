"""Training of listeners by the hinge loss of the hardest negatives: images and their human captions, by a margin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tellapart.draws import base_seed
from tellapart.listeners.trained import TrainedListener, freeze_temperature
from tellapart.listeners.vse import Vse
from tellapart.objectives.contrastive import draw_texts, in_buckets
from tellapart.ops import hardest_hinge
from tellapart.ranges import NonNegativeInt, PositiveFloat, PositiveInt, in_range
from tellapart.types import Batch, ObjectiveModule, StepOutput


@dataclass(frozen=True)
class Described:
    """One text for each image of a batch.

    Args:
        batch: B images.
        texts: B human captions.
        every: whether all others count, and not the hardest alone.
    """

    batch: Batch
    texts: list[str]
    every: bool = False


class Hinge(ObjectiveModule):
    """The first stage of PSST: a listener learns from human captions (Vered et al., ICCV 2019, equation 2; the loss is that
    of VSE++, Faghri et al., BMVC 2018, section 3.2).

    ``l_i = [m - S_ii + max_j S_ij]_+ + [m - S_ii + max_j S_ji]_+`` with cosines S of images and captions and the hardest
    others j of the batch; see ``hardest_hinge``. Their code sums over 128 images, with m = 0.2, Adam at
    5e-4 and gradients clamped to 0.1 each; the paper's m is 1.

    Departures: one caption of each image is drawn again each time, where the code takes all five in turn; images with the very
    same caption are not negatives of each other, which matters where captions are short. Where many captions fit many images,
    the hardest others are nearly right, and a listener that begins with them can end at giving all the same embedding, at a
    cost of 2 m; ``warmup_steps`` begins with all others, as other VSEs do (Kiros et al. 2014; Chen et al., CVPR 2021).

    Args:
        listener: what learns, as the part ``listener``: a CLIP whose image side may be frozen (then images are not read again
            if their embeddings are known), or a VSE.
        margin: m, on the scale of cosines.
        reduction: ``sum`` over the images of a batch, or their ``mean``; they differ in gradient scale, by the batch size.
        warmup_steps: in the first ``warmup_steps`` steps costs are the sums over all others, not those of the hardest.
        buckets: number of groups of similar length that texts are read in, which saves padding and changes nothing else.

    Raises:
        ValueError: a number cannot be used.
    """

    decomposes = False

    @in_range
    def __init__(
        self,
        listener: TrainedListener | Vse,
        *,
        margin: PositiveFloat = 0.2,
        reduction: Literal["sum", "mean"] = "sum",
        warmup_steps: NonNegativeInt = 0,
        buckets: PositiveInt = 3,
    ) -> None:
        super().__init__()
        if isinstance(listener, TrainedListener):
            freeze_temperature(listener.listener)
        self.listener, self.margin, self.reduction = listener, margin, reduction
        self.warmup_steps, self.buckets = warmup_steps, buckets

    def collect(self, batch: Batch, step: int) -> Described:
        """Draw one reference for each image.

        Raises:
            UsageError: an image has no reference.
        """
        return Described(batch, draw_texts(batch, base_seed()), every=step < self.warmup_steps)

    def losses(self, experience: Described) -> Iterator[StepOutput]:
        """One piece: the cost summed over images.

        Raises:
            UsageError: the batch holds a single image.
        """
        texts = experience.texts
        candidates = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        images = self.listener.embed_images(experience.batch)
        embedded = in_buckets(list(candidates), self.listener.embed_texts, self.buckets)
        column = torch.tensor([candidates[text] for text in texts], device=images.device)
        # Rounded to bfloat16, cosines near a margin of 0.2 would be off by more than they differ.
        with torch.autocast(images.device.type, enabled=False):
            similarities = images @ embedded[column].T
        same = column[:, None] == column[None, :]
        hinge = summed_hinge if experience.every else hardest_hinge
        costs = hinge(similarities, self.margin, same=same)
        weight = float(len(costs)) if self.reduction == "mean" else 1.0
        yield StepOutput(costs.sum(), costs.new_tensor(weight).detach(), _logs(similarities.detach(), same, costs))


def summed_hinge(similarities: Tensor, margin: float, *, same: Tensor) -> Tensor:
    """``[B]``: ``sum_j [m - S_ii + S_ij]_+ + sum_j [m - S_ii + S_ji]_+``; arguments as for
    ``hardest_hinge``."""
    nearer = [margin - similarities.diagonal()[:, None] + rivals for rivals in (similarities, similarities.T)]
    return torch.stack(nearer).clamp(min=0).masked_fill(same, 0.0).sum(dim=(0, 2))


def _logs(similarities: Tensor, same: Tensor, costs: Tensor) -> dict[str, Tensor]:
    """``[B]`` each: the cost, whether it is above 0, the pair's cosine, and whether no other caption is as near."""
    own = similarities.diagonal()
    others = similarities.masked_fill(same, -torch.inf).max(dim=1).values
    return {
        "hinge_cost": costs.detach(),
        "hinge_active": (costs > 0).float().detach(),
        "cosine": own,
        "recall@1": (own > others).float(),
    }
