"""What several objectives log and score in the same way."""

from __future__ import annotations

from torch import Tensor

from tellapart.ops import group_std
from tellapart.rewards.mix import one_each
from tellapart.types import MixedReward, Reward, Rollout


def score(reward: Reward, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
    """``([N] rewards, logs)``; the logs hold each part of a mixed reward as ``rewards/<name>``, as applied.

    Raises:
        UsageError: a reward is not one number per caption.
    """
    if isinstance(reward, MixedReward):
        parts = {f"rewards/{name}": one_each(values, name, rollout) for name, values in reward.parts(rollout).items()}
        return sum(parts.values(), start=parts[next(iter(parts))].new_zeros(len(rollout))), parts
    return one_each(reward(rollout), getattr(reward, "__name__", type(reward).__name__), rollout), {}


def rollout_logs(rollout: Rollout, rewards: Tensor) -> dict[str, Tensor]:
    """The figures of a drawn rollout that every reward method logs, under TRL's names.

    ``reward_std`` is the unbiased deviation among the captions of one image; ``frac_reward_zero_std`` the share of
    captions in groups without any, which teach nothing. Both are left out where every image has one caption.
    ``rollout_dtype_difference``, in nats per token, is there where captions are drawn in another dtype than float32.
    """
    logs = {
        "reward": rewards,
        "completions/mean_length": rollout.lengths.to(rewards.dtype),
        "completions/clipped_ratio": (~rollout.finished).to(rewards.dtype),
    }
    if rollout.dtype_difference is not None:
        logs["rollout_dtype_difference"] = rollout.dtype_difference
    if len(rollout.image.unique()) == len(rollout):
        return logs
    spread = group_std(rewards, rollout.image)
    return logs | {"reward_std": spread, "frac_reward_zero_std": (spread == 0).to(rewards.dtype)}
