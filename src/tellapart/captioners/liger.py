"""Log-probabilities by Liger's fused linear cross-entropy, on a GPU (Hsu et al., "Liger Kernel", 2024).

Logits are computed a few rows at a time, in the forward and in the backward pass, and a kernel of one pass turns them into their
gradient in place. All logits of a scoring never exist at once.
"""

from __future__ import annotations

import math
import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from packaging.version import Version
from torch import Tensor

from tellapart.captioners.families.base import Family
from tellapart.captioners.reading import States
from tellapart.errors import UsageError

LEAST = Version("0.8.2")
"""Of liger-kernel: before it, gradients of the weights were wrong where words have different weights in the loss."""


def interpreted() -> bool:
    """Whether Triton's kernels are computed by its interpreter, which needs no GPU and is slow."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def require_liger(family: Family) -> None:
    """Raise where Liger cannot compute a captioner's log-probabilities.

    Of a captioner without weights, whose memory is to be told, only the last of these is asked.

    Raises:
        UsageError: it is not installed, or too old; there is no GPU; the output embedding has an adapter.
    """
    if family.plain_head is None:
        raise UsageError(
            "use_liger_kernel needs an output embedding without an adapter: leave it out of the adapted layers."
        )
    if family.head.weight.is_meta:
        return
    found = _installed()
    if found is None:
        raise UsageError("use_liger_kernel needs Liger and Triton: pip install 'tellapart[liger]', or leave it out.")
    if found < LEAST:
        raise UsageError(
            f"use_liger_kernel needs liger-kernel {LEAST} or later, and {found} is installed: update it, or leave it out."
        )
    if not torch.cuda.is_available() and not interpreted():
        raise UsageError("use_liger_kernel needs a GPU: leave it out.")


def _installed() -> Version | None:
    try:
        return Version(version("liger-kernel")) if find_spec("triton") else None
    except PackageNotFoundError:
        return None


def liger_logprobs(family: Family, states: States, targets: Tensor) -> Tensor:
    """``[M]`` log-probabilities of ``targets [M]``, the words that the states predict, in float32, with gradients.

    A word that several captions have after the same words is computed once.

    Raises:
        UsageError: the states are not on a GPU.

    Example::

        states = token_states(family, encoded, image, tokens, mask)
        liger_logprobs(family, states, tokens[states.place])
    """
    if states.hidden.device.type == "cpu" and not interpreted():
        raise UsageError("use_liger_kernel needs a captioner on a GPU: leave it out, or move the captioner there.")
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    words, place = (states.index * family.vocab_size + targets).unique(return_inverse=True)
    assert family.plain_head is not None, "require_liger was asked"
    weight, bias = family.plain_head
    with torch.autocast(states.hidden.device.type, enabled=False):
        hidden = family.before_head(states.hidden.to(family.head_dtype))[words // family.vocab_size]
        losses = liger_fused_linear_cross_entropy(
            hidden.contiguous(),
            weight,
            words % family.vocab_size,
            bias,
            reduction="none",
            softcap=family.softcap,
            accum_dtype=torch.float32,
        )
    return -losses[place]


def liger_numbers(words: int, family: Family) -> int:
    """The most numbers that Liger holds at once in the backward pass over ``words`` words.

    They are the logits of some rows and their gradient, the states of all and their gradient, and a gradient of the head where
    that trains.
    """
    width, vocabulary = family.head.in_features, family.vocab_size
    whole = math.ceil(words / math.ceil(vocabulary / width))
    rows = min(words, 2 ** math.ceil(math.log2(whole)))
    trains = family.head.weight.requires_grad
    return 2 * rows * vocabulary + 2 * words * width + trains * vocabulary * width
