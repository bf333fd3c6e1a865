"""One way into greedy search, sampling and beam search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.beam import beam_search
from tellapart.captioners.families.base import Family
from tellapart.captioners.rollout import draw
from tellapart.draws import base_seed, uniforms
from tellapart.types import Decoding


def draw_captions(
    family: Family, encoded: Encoded, ids: Sequence[str], decoding: Decoding, *, logprobs: bool
) -> tuple[Tensor, Tensor | None]:
    """Draw ``num_return_sequences`` captions of every image, image by image.

    Sampling takes one number from torch's global generator, and nothing else from it: a caption depends on that number and
    its image's id.

    Args:
        family: the model.
        encoded: states of B images.
        ids: of these images.
        decoding: how.
        logprobs: also return the raw log-probability of each token; beam search has none.

    Returns:
        ``[N, max_new_tokens]`` tokens, padded after EOS, and ``[N, max_new_tokens]`` float32 log-probabilities or none.
    """
    if decoding.num_beams > 1:
        return beam_search(family, encoded, decoding), None
    numbers = _numbers(encoded, ids, decoding).flatten(0, 1) if decoding.do_sample else None
    return draw(family, encoded, decoding, numbers, logprobs=logprobs)


def draw_with_greedy(family: Family, encoded: Encoded, ids: Sequence[str], decoding: Decoding) -> tuple[Tensor, Tensor]:
    """Samples as :func:`draw_captions` draws them, and the greedy caption of every image, in one loop.

    Args:
        family: the model.
        encoded: states of B images.
        ids: of these images.
        decoding: of the samples.

    Returns:
        ``[B * num_return_sequences, max_new_tokens]`` and ``[B, max_new_tokens]`` tokens, padded after EOS.
    """
    numbers = _numbers(encoded, ids, decoding)
    greedy = torch.full_like(numbers[:, :1], torch.nan)
    tokens, _ = draw(family, encoded, decoding, torch.cat([numbers, greedy], dim=1).flatten(0, 1))
    rows = tokens.unflatten(0, (len(ids), -1))
    return rows[:, :-1].flatten(0, 1), rows[:, -1]


def _numbers(encoded: Encoded, ids: Sequence[str], decoding: Decoding) -> Tensor:
    """``[B, num_return_sequences, max_new_tokens]`` numbers in [0, 1) that sampling takes."""
    shape = (-1, decoding.num_return_sequences, decoding.max_new_tokens)
    numbers = uniforms(ids, decoding.num_return_sequences * decoding.max_new_tokens, base_seed())
    return numbers.view(shape).float().to(encoded.states.device)
