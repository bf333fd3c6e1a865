"""METEOR as a reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.metrics.meteor import meteor
from tellapart.metrics.meteor_data import Resources, load_resources
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.ranges import PositiveInt, in_range
from tellapart.types import Rollout


class Meteor:
    """METEOR 1.5 of each caption with the references of its image, 0 to 1.

    Captions and references are cut into words exactly as for the metric. The words of an image's references are kept
    from when it is first seen.

    Args:
        resources: METEOR's data; by default those of the installed pycocoevalcap.
        prepared_images: keep the references of this many images.

    Raises:
        ValueError: ``prepared_images`` is below 1.
        UsageError: pycocoevalcap is not installed.
    """

    @in_range
    def __init__(self, resources: Resources | None = None, *, prepared_images: PositiveInt = 100_000) -> None:
        self.resources = load_resources() if resources is None else resources
        self.prepared_images = prepared_images
        self._prepared: dict[tuple[str, ...], list[str]] = {}

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32.

        Raises:
            UsageError: an image has no references.
        """
        return torch.from_numpy(self.score(rollout)).to(rollout.image.device, torch.float32)

    def score(self, rollout: Rollout) -> np.ndarray:
        """``[N]`` float64, the same before it is rounded.

        Raises:
            UsageError: an image has no references.
        """
        images = rollout.image.cpu().tolist()
        if not images:
            return np.zeros(0)
        references = [self._references(rollout, image) for image in images]
        return meteor(ptb_tokenize(rollout.texts, alone=True), references, self.resources)[1]

    def _references(self, rollout: Rollout, image: int) -> Sequence[str]:
        key = tuple(rollout.batch.references[image])
        if key not in self._prepared:
            if not any(reference.strip() for reference in key):
                raise UsageError(
                    f"the METEOR reward needs references, but image {rollout.batch.ids[image]!r} has none: "
                    "leave such images out of training, or choose a reward that reads the image."
                )
            self._prepared[key] = ptb_tokenize(key, alone=True)
            while len(self._prepared) > self.prepared_images:
                del self._prepared[next(iter(self._prepared))]
        return self._prepared[key]
