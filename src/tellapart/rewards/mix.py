"""A weighted sum of rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.types import Reward, Rollout


def one_each(values: Any, name: str, rollout: Rollout) -> Tensor:
    """``[N]``: what a reward gives, without gradient.

    Args:
        values: that.
        name: of the reward, for the message.
        rollout: N captions.

    Raises:
        UsageError: it is not a tensor with one number per caption.
    """
    if isinstance(values, Tensor) and values.shape == (len(rollout),):
        return values.detach()
    found = f"a tensor of shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
    raise UsageError(
        f"reward {name!r} gives {found} for {len(rollout)} captions: let it give a tensor with one number per caption."
    )


class Mix:
    """``sum_i w_i * r_i``, with every part logged as applied.

    Args:
        rewards: name -> reward.
        weights: name -> weight; a reward without one counts once.

    Raises:
        UsageError: there are no rewards, or a weight names none of them.
    """

    def __init__(self, rewards: Mapping[str, Reward], weights: Mapping[str, float] | None = None) -> None:
        unknown = [name for name in weights or {} if name not in rewards]
        if not rewards or unknown:
            what = (
                f"a weight is given for {unknown[0]!r}, which is not a reward"
                if unknown
                else "there are no rewards to mix"
            )
            raise UsageError(f"{what}: name at least one reward, and weights of rewards only ({', '.join(rewards)}).")
        self.rewards = dict(rewards)
        self.weights = {name: float((weights or {}).get(name, 1.0)) for name in rewards}

    def parts(self, rollout: Rollout) -> dict[str, Tensor]:
        """Name -> ``[N]`` weighted contribution; they sum to the reward.

        Raises:
            UsageError: a reward is not one number per caption.
        """
        return {
            name: self.weights[name] * one_each(reward(rollout), name, rollout) for name, reward in self.rewards.items()
        }

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]``, without gradient."""
        return torch.stack(list(self.parts(rollout).values())).sum(dim=0)
