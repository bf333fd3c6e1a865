"""Pure tensor functions shared by objectives and rewards: reductions, group statistics, sequence log-probabilities.

``values`` and ``mask`` are ``[N, T]``; ``group`` is ``[N]`` long and says which image each caption is of. Captions of one
image need not be adjacent and groups may differ in size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from tellapart.errors import UsageError, reason_of

Reduction = Literal["token_mean", "seq_sum", "seq_mean"]


def current_device() -> torch.device:
    """The accelerator that this process is to use, or the CPU."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        return torch.device("cpu")
    return torch.device(kind.type, int(os.environ.get("LOCAL_RANK", "0")) if kind.type == "cuda" else 0)


def named_device(name: str | torch.device, option: str) -> torch.device:
    """A device that can be used here.

    Args:
        name: such as ``cuda:1``.
        option: that names it.

    Raises:
        UsageError: it is unknown, or not here.
    """
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = reason_of(error)
        raise UsageError(
            f"{option} is {str(name)!r}, which cannot be used here ({reason}): name another, or leave it out."
        ) from error


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """``values`` where ``mask`` is set and exactly 0 elsewhere, also where the value is not finite; no gradient there."""
    return torch.where(mask.bool(), values, torch.zeros_like(values))


def first_eos_mask(tokens: Tensor, eos_token_ids: list[int]) -> tuple[Tensor, Tensor]:
    """``(mask [N, T], finished [N])``: true up to and including the first EOS; a row without one is all true.

    Never derived from padding: with GPT-2 the padding id *is* the EOS id.
    """
    is_eos = torch.isin(tokens, torch.tensor(eos_token_ids, device=tokens.device))
    seen_before = is_eos.long().cumsum(dim=1) - is_eos.long()
    return seen_before == 0, is_eos.any(dim=1)


def sequence_logprob(logprobs: Tensor, mask: Tensor) -> Tensor:
    """``[N]`` log-probability of each caption: the sum over its tokens, EOS included."""
    return masked(logprobs, mask).sum(dim=1)


def _token_mean(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return masked(values, mask).sum(), mask.sum().to(values.dtype)


def _seq_sum(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return masked(values, mask).sum(), values.new_tensor(float(len(values)))


def _seq_mean(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    per_caption = masked(values, mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return per_caption.sum(), values.new_tensor(float(len(values)))


_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "token_mean": _token_mean,
    "seq_sum": _seq_sum,
    "seq_mean": _seq_mean,
}


def reduce(values: Tensor, mask: Tensor, reduction: Reduction) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` whose quotient is the named reduction of token values.

    ``token_mean`` is the mean over all tokens of all captions; ``seq_sum`` the mean over captions of the sum over tokens;
    ``seq_mean`` the mean over captions of the mean over their tokens. They differ in how length counts and, by about the
    mean length, in gradient scale, so learning rates do not carry over.
    """
    return _REDUCTIONS[reduction](values, mask)


def group_sum(values: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """``(sum, count)``, each ``[N]``: of the group every row belongs to."""
    size = int(group.max()) + 1 if len(group) else 0
    sums = values.new_zeros(size).index_add(0, group, values)
    counts = values.new_zeros(size).index_add(0, group, torch.ones_like(values))
    return sums[group], counts[group]


def group_mean(values: Tensor, group: Tensor) -> Tensor:
    """``[N]`` mean of each row's group; of equal values exactly that value."""
    least, total, count = _group_sum_above_least(values, group)
    return least + total / count


def leave_one_out_mean(values: Tensor, group: Tensor) -> Tensor:
    """``[N]`` mean of the *other* rows of each row's group, of equal values exactly that value; a row alone in its group gets its
    own value (advantage 0)."""
    least, total, count = _group_sum_above_least(values, group)
    return torch.where(count > 1, least + (total - (values - least)) / (count - 1).clamp(min=1), values)


def group_std(values: Tensor, group: Tensor) -> Tensor:
    """``[N]`` unbiased standard deviation within each row's group; exactly 0 for groups of one and of equal values."""
    total, count = group_sum((values - group_mean(values, group)) ** 2, group)
    return (total / (count - 1).clamp(min=1)).sqrt()


def _group_sum_above_least(values: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[N]`` each: the least value of a row's group, the sum over the group of what is above it, and the group's size.

    Equal values leave zeros, whose mean has no rounding. The rounding of a mean would be an advantage of equal captions, and one
    divided by a deviation near 0 is not small.
    """
    size = int(group.max()) + 1 if len(group) else 0
    least = values.new_zeros(size).scatter_reduce(0, group, values, "amin", include_self=False)[group]
    return (least, *group_sum(values - least, group))


def kl_k3(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """Per-token estimate ``exp(d) - d - 1``, ``d = reference - logprobs``, of KL(policy || reference): never negative,
    differentiable (Schulman's k3, used in GRPO's loss).

    Args:
        logprobs: ``[N, T]``, of the policy.
        reference: ``[N, T]``.
        mask: ``[N, T]`` bool, real tokens. The others are 0, also in the gradient, whatever they hold.
    """
    difference = masked(reference - logprobs, mask)
    return difference.exp() - difference - 1


def hardest_hinge(similarities: Tensor, margin: float = 0.2, *, same: Tensor | None = None) -> Tensor:
    """``[B]`` cost of each image and its caption against the hardest others of the batch.

    ``l_i = [m - S_ii + max_{j != i} S_ij]_+ + [m - S_ii + max_{j != i} S_ji]_+`` (VSE++: Faghri et al., BMVC 2018, section
    3.2; PSST: Vered et al., ICCV 2019, equation 2). PSST's paper has a margin of 1, its code 0.2 and the sum over the
    batch, which is the caller's to take.

    Args:
        similarities: ``[B, B]`` cosines, rows images and columns captions; the diagonal holds the pairs.
        margin: m, on the scale of the similarities.
        same: ``[B, B]`` bool, pairs that are not negatives of each other, such as images with the very same caption; none: only
            the pairs themselves.

    Raises:
        UsageError: there is nothing to compare an image with.
    """
    count = len(similarities)
    if count < 2:
        raise UsageError(
            f"the hinge loss compares an image with the others of its batch, but it has {count} in all: set "
            "per_device_train_batch_size to 2 or more."
        )
    own = similarities.diagonal()
    excluded = torch.eye(count, dtype=torch.bool, device=similarities.device)
    others = similarities.masked_fill(excluded if same is None else excluded | same, -torch.inf)
    costs = [(margin - own + others.max(dim=dim).values).clamp(min=0) for dim in (1, 0)]
    return costs[0] + costs[1]


def describe_weights(module: nn.Module) -> str:
    """How many weights a module has, and how many of them train: ``2,310 weights, 1,200 trainable``."""
    counts = [(weight.numel(), weight.requires_grad) for weight in module.parameters()]
    total, trained = sum(count for count, _ in counts), sum(count for count, trains in counts if trains)
    return f"{total:,} weights, {trained:,} trainable"


def require_finite(model: nn.Module, what: str) -> None:
    """Raise where weights are NaN or infinite: such a model writes and compares captions all the same, of nothing.

    Args:
        model: just loaded.
        what: a name for the message, such as ``captioner models/x``.

    Raises:
        UsageError: naming the first such weight.
    """
    for key, weight in model.named_parameters():
        if (
            weight.is_floating_point()
            and weight.numel()
            and not torch.stack(weight.detach().aminmax()).isfinite().all()
        ):
            raise UsageError(f"{what} holds weights that are not finite, first {key}: restore or replace it.")
