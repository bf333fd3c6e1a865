"""Log-probabilities of given captions, by length and in chunks, so that ``[N, T, V]`` never exists."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import select_rows
from tellapart.captioners.families.base import Family
from tellapart.captioners.liger import liger_logprobs
from tellapart.captioners.reading import States
from tellapart.types import Scores

CHUNK_ELEMENTS = 2**24
"""Logits that are computed at once without gradients, and at once if they are computed again: 64 MiB in float32.

Not smaller: glibc maps blocks above 32 MiB singly and gives them back, smaller ones fragment its heap (2.4 GB were
measured where 0.3 GB were in use).
"""

LOGITS_BUDGET = 1.0
"""GiB of logits that one scoring keeps for the backward pass by default, on a CPU; on a GPU it is a tenth of its memory."""

COPIES = 4
"""Arrays as large as the logits while they are differentiated by autograd, as for entropies: logits, log-probabilities, and the
gradients of both. ``_ChosenLogprobs`` has one."""

BUCKET_OVERHEAD = 128
"""What one more pass through the decoder costs, in tokens; measured on one CPU thread with a 2-layer decoder."""

WANTS = frozenset({"entropy", "hidden", "logits"})


def length_buckets(lengths: list[int], overhead: int = BUCKET_OVERHEAD) -> list[tuple[list[int], int]]:
    """``(rows, width)`` of the passes that score captions of these lengths with the least work.

    A pass costs ``rows * width`` tokens and ``overhead``; the best division of the sorted lengths into consecutive runs
    is found exactly by dynamic programming over distinct lengths. Empty captions are in no bucket.
    """
    order = sorted((row for row, length in enumerate(lengths) if length > 0), key=lengths.__getitem__)
    widths = sorted({lengths[row] for row in order})
    ends = [0] + [sum(lengths[row] <= width for row in order) for width in widths]
    best, origin = [0.0], [0]
    for last, width in enumerate(widths, start=1):
        costs = [best[first] + (ends[last] - ends[first]) * width + overhead for first in range(last)]
        origin.append(min(range(last), key=costs.__getitem__))
        best.append(costs[origin[-1]])
    buckets, last = [], len(widths)
    while last > 0:
        first = origin[last]
        buckets.append((order[ends[first] : ends[last]], widths[last - 1]))
        last = first
    return buckets


class _ChosenLogprobs(torch.autograd.Function):
    """``[M]`` log-probabilities of ``targets [M]`` under the rows ``index [M]`` of ``logits [m, V]``, whose memory becomes that
    of their softmax.

    Nothing else of ``[m, V]`` is made on either way. The logits must not be used elsewhere, and backward runs once.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, index: Tensor) -> Tensor:
        chosen, top = logits[index, targets], logits.amax(dim=1)
        spread = torch.softmax(logits, dim=1, out=logits)
        # The likeliest word's probability is at least 1 / V, and so never rounded to 0 as the target's may be.
        normaliser = top - spread.amax(dim=1).log()
        ctx.save_for_backward(spread, targets, index)  # so, and not as attributes: a checkpoint drops what is saved
        return chosen - normaliser[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        spread, targets, index = ctx.saved_tensors
        # Unlike index_add_, this adds in the same order every time, also on a GPU.
        rows = gradient.new_zeros(len(spread)).index_put_((index,), gradient, accumulate=True)
        spread.mul_(-rows[:, None])
        return spread.index_put_((index, targets), gradient, accumulate=True), None, None


def logits_alive(
    count: int, device: torch.device, *, entropy: bool = False, budget: float | None = None
) -> tuple[bool, int]:
    """Whether ``count`` logits are kept for the backward pass, and how many floats of logits are alive at once if they are
    differentiated.

    Args:
        count: of logits.
        device: where they are.
        entropy: whether autograd differentiates them, as for entropies.
        budget: GiB that may be kept; none: ``LOGITS_BUDGET``, on a GPU a tenth of its memory.
    """
    if budget is None:
        gpu = device.type == "cuda"
        budget = torch.cuda.get_device_properties(device).total_memory / 10 / 2**30 if gpu else LOGITS_BUDGET
    copies = COPIES if entropy else 1
    kept = 4 * copies * count <= int(budget * 2**30)
    return kept, copies * (count if kept else min(count, CHUNK_ELEMENTS))


def token_logprobs(
    head: Callable[[Tensor], Tensor],
    states: States,
    targets: Tensor,
    vocabulary: int,
    *,
    entropy: bool,
    budget: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``(log p [M], entropy [M] or None)`` of ``targets [M]``, the words that the states predict, in float32.

    With gradients, logits are kept up to the ``budget`` of ``logits_alive``. Beyond it, and without gradients, they are
    computed a chunk of rows at a time; with gradients a chunk's logits are then dropped and computed again in the backward pass.
    """

    def chunk(hidden: Tensor, index: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden).float()
        if not entropy:
            return _ChosenLogprobs.apply(logits, chosen, index), logits.new_zeros(len(chosen))
        logprobs = logits.log_softmax(dim=-1)
        spread = -(logprobs.exp() * logprobs).sum(dim=-1)
        return logprobs[index, chosen], spread[index]

    learns, rows = torch.is_grad_enabled(), max(1, CHUNK_ELEMENTS // vocabulary)
    hidden, index = states.hidden, states.index
    kept, _ = logits_alive(len(hidden) * vocabulary, hidden.device, entropy=entropy, budget=budget)
    if (learns and kept) or len(hidden) <= rows:
        chosen, spread = chunk(hidden, index, targets)
        return chosen, spread if entropy else None
    run = chunk
    if learns:

        def run(hidden: Tensor, index: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
            return checkpoint(chunk, hidden, index, chosen, use_reentrant=False)

    words = [int(part.sum()) for part in index.bincount(minlength=len(hidden)).split(rows)]
    split = zip(hidden.split(rows), index.split(words), targets.split(words), strict=True)
    parts = [run(part, own - rows * number, chosen) for number, (part, own, chosen) in enumerate(split)]
    chosen, spread = (torch.cat(part) for part in zip(*parts, strict=True))
    return chosen, spread if entropy else None


class _Reader:
    """Hidden states that predict each token, by one of two equal ways."""

    def __init__(self, family: Family, encoded: Encoded, *, share_prefix: bool) -> None:
        self.family, self.encoded, self.first = family, encoded, None
        if share_prefix:
            # The start tokens and the image's keys and values: once per image, not once per caption.
            self.cache = family.new_cache()
            self.first = family.prefix(encoded, self.cache)

    def __call__(self, tokens: Tensor, image: Tensor) -> Tensor:
        """``[n, t, D]`` for ``tokens [n, t]`` of the images ``[n]``."""
        if self.first is None:
            return self.family.teacher_forced(tokens, self.encoded, image)
        first = self.first[image][:, None]
        if tokens.shape[1] == 1:
            return first
        cache = select_rows(self.cache, image)
        return torch.cat([first, self.family.decode(tokens[:, :-1], self.encoded, image, cache)], dim=1)


def token_states(
    family: Family, encoded: Encoded, image: Tensor, tokens: Tensor, mask: Tensor, *, share_prefix: bool = True
) -> States:
    """States that predict the real tokens.

    The arguments are those of ``score``; at least one token must be real.
    """
    if (
        share_prefix
        and not family.lockstep
        and (found := family.read_captions(encoded, image, tokens, mask)) is not None
    ):
        return found
    read = _Reader(family, encoded, share_prefix=share_prefix)
    hidden, rows, columns = [], [], []
    lengths = mask.sum(dim=1).tolist()
    for members, width in [(list(range(len(mask))), mask.shape[1])] if family.lockstep else length_buckets(lengths):
        index = torch.tensor(members, device=tokens.device)
        kept = mask[index, :width]
        hidden.append(read(tokens[index, :width], image[index])[kept])
        row, column = kept.nonzero(as_tuple=True)
        rows.append(index[row])
        columns.append(column)
    place = torch.cat(rows), torch.cat(columns)
    return States(torch.cat(hidden), torch.arange(len(place[0]), device=tokens.device), place)


def score(
    family: Family,
    encoded: Encoded,
    image: Tensor,
    tokens: Tensor,
    mask: Tensor,
    *,
    want: Collection[str] = (),
    share_prefix: bool = True,
    read: Tensor | None = None,
    budget: float | None = None,
    liger: bool = False,
) -> Scores:
    """Score captions under the raw distribution.

    Args:
        family: the model.
        encoded: states of B images.
        image: ``[N]``, the image of each caption.
        tokens: ``[N, T]`` caption tokens.
        mask: ``[N, T]`` bool, a run of true from the left.
        want: any of ``entropy``, ``hidden``, ``logits``.
        share_prefix: compute what captions of an image have in common once; layers that are checkpointed keep no cache,
            so they need it off.
        read: ``[N, T]`` words that the model reads in place of ``tokens``, which stay those that are scored; none: the same.
        budget: as for ``logits_alive``.
        liger: with gradients and without entropies, compute log-probabilities by Liger (``liger.py``).

    Raises:
        ValueError: ``want`` names something else.
    """
    if not set(want) <= WANTS:
        raise ValueError(f"want={sorted(want)} may name {', '.join(sorted(WANTS))} only")
    scored = partial(_scored, family, encoded, want=want, share_prefix=share_prefix, budget=budget, liger=liger)
    return (_in_lockstep(scored, family.pad) if family.lockstep else scored)(image, tokens, mask, read)


def _scored(
    family: Family,
    encoded: Encoded,
    image: Tensor,
    tokens: Tensor,
    mask: Tensor,
    read: Tensor | None,
    *,
    want: Collection[str],
    share_prefix: bool,
    budget: float | None,
    liger: bool,
) -> Scores:
    if not bool(mask.any()):
        return Scores(torch.zeros(mask.shape, device=tokens.device))
    seen = tokens if read is None else read
    states = token_states(family, encoded, image, seen, mask, share_prefix=share_prefix)

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(*mask.shape, *values.shape[1:]).index_put(states.place, values)

    targets, entropy = tokens[states.place], None
    if liger and torch.is_grad_enabled() and "entropy" not in want:
        chosen = liger_logprobs(family, states, targets)
    else:
        chosen, entropy = token_logprobs(
            family.exact_logits, states, targets, family.vocab_size, entropy="entropy" in want, budget=budget
        )
    return Scores(
        spread(chosen),
        None if entropy is None else spread(entropy),
        spread(states.each()) if "hidden" in want else None,
        spread(family.exact_logits(states.hidden)[states.index]) if "logits" in want else None,
    )


def _in_lockstep(scored: Callable[..., Scores], padding: int) -> Callable[..., Scores]:
    """The scores by as many calls of each layer as any other rollout takes: also one of no captions, or of one word each."""

    def score(image: Tensor, tokens: Tensor, mask: Tensor, read: Tensor | None) -> Scores:
        rows, columns = mask.shape
        # A caption of one word alone would not be read by the decoder.
        more = 0, max(0, 2 - columns), 0, max(0, 1 - rows)
        image = pad(image, (0, more[3]))
        tokens, asked = pad(tokens, more, value=padding), pad(mask, more)
        read = None if read is None else pad(read, more, value=padding)
        empty = not bool(asked.any())
        if empty:
            place = torch.zeros(1, dtype=torch.long)
            asked = asked.index_put((place, place), asked.new_ones(1))
        scores = scored(image, tokens, asked, read)

        def cut(values: Tensor | None) -> Tensor | None:
            # Zeros that keep their gradient: the backward pass calls the layers, too.
            if values is None:
                return None
            values = values * 0 if empty else values
            return values[:rows, :columns].clone() if any(more) else values  # hooks of sharding take no views

        logprobs = cut(scores.logprobs)
        assert logprobs is not None
        return Scores(logprobs, cut(scores.entropy), cut(scores.hidden), cut(scores.logits))

    return score
