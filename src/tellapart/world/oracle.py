"""The reward that knows the truth: a ceiling for rewards made of models, on the built-in world only."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.ranges import AtLeastTwo, in_range
from tellapart.types import Rollout
from tellapart.world.grammar import parse
from tellapart.world.scenes import Scene
from tellapart.world.truth import SceneTable, is_true, true_of


class Oracle:
    """0 for a caption that is false or ungrammatical, else ``1.1 - log m / log M`` for m of M scenes that it is true of.

    So a caption that is true of every scene gets 0.1 and one that is true of its own alone 1.1. A control: no model is this
    right, and on images other than the world's the truth is unknown.

    Args:
        scenes: image id -> its scene, for every image that will come.
        gallery: M of the scenes that captions are compared with; more cost more time.

    Raises:
        ValueError: ``gallery`` is below 2.
        UsageError: there are fewer than two scenes.

    Example:
        >>> reward = Oracle(load_scenes("train"))
    """

    @in_range
    def __init__(self, scenes: Mapping[str, Scene], *, gallery: AtLeastTwo = 1000) -> None:
        if len(scenes) < 2:
            raise UsageError("the oracle needs at least two scenes of the built-in world to tell apart.")
        self._scenes, self._table = scenes, SceneTable.of(list(scenes.values())[:gallery])

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32 from 0 to 1.1.

        Raises:
            UsageError: an image is not of the world.
        """
        values = [self._value(text, name) for text, name in zip(rollout.texts, rollout.ids(), strict=True)]
        return torch.tensor(values, dtype=torch.float32, device=rollout.image.device)

    def _value(self, text: str, name: str) -> float:
        if name not in self._scenes:
            raise UsageError(
                f"the oracle knows no scene of image {name!r}: it is a control for the built-in world and no reward for photos; "
                "use truth with a matcher instead."
            )
        said = parse(text)
        if said is None or not is_true(said, self._scenes[name]):
            return 0.0
        fitting = max(1, int(np.count_nonzero(true_of(said, self._table))))
        return 1.1 - math.log(fitting) / math.log(len(self._table))
