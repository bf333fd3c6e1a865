"""Beam search over any family, with the decisions of Hugging Face's ``generate``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import select_rows
from tellapart.captioners.families.base import Family
from tellapart.captioners.rollout import restricted
from tellapart.types import Decoding

NEVER = -1.0e9
"""Score of what must not be chosen; finite, so that ranks among such stay defined."""


@dataclass
class _Beams:
    """What is known of b images: k running beams, and the k best that ended.

    Args:
        running: ``[b, k]`` summed log-probabilities.
        tokens: ``[b, k, t]`` of the running beams.
        ended: ``[b, k]`` scores of those that ended, divided by length to the power of the length penalty.
        captions: ``[b, k, max_new_tokens]`` tokens of those that ended.
        found: ``[b, k]`` bool, whether a place holds one.
        pad: id that fills captions after their end.
    """

    running: Tensor
    tokens: Tensor
    ended: Tensor
    captions: Tensor
    found: Tensor
    pad: int

    def select(self, images: Tensor) -> _Beams:
        """The images at these places."""
        return _Beams(
            self.running[images],
            self.tokens[images],
            self.ended[images],
            self.captions[images],
            self.found[images],
            self.pad,
        )


def beam_search(family: Family, encoded: Encoded, decoding: Decoding) -> Tensor:
    """``[B * num_return_sequences, max_new_tokens]`` tokens, best first for each image, padded after EOS.

    The search keeps ``num_beams`` beams, collects those that end, and leaves an image when no running beam can beat the
    worst of ``num_beams`` collected ones at its present length (``early_stopping=False``). Such images leave the batch
    and the cache. Captions are those of transformers 5's ``generate`` with the same settings; log-probabilities after
    ``no_repeat_ngram_size`` and ``min_new_tokens`` are not renormalised, as there.

    Args:
        family: the model.
        encoded: states of B images.
        decoding: how; ``num_beams`` above 1.
    """
    device, size, beams = encoded.states.device, len(encoded.states), decoding.num_beams
    cache = family.new_cache()
    scores = family.exact_logits(family.prefix(encoded, cache))
    image = torch.arange(size, device=device).repeat_interleave(beams)
    cache, scores = select_rows(cache, image), scores[image]
    state = _begin(family, decoding, size, device)
    best = torch.full((size, decoding.num_return_sequences, decoding.max_new_tokens), family.pad, device=device)
    images = torch.arange(size, device=device)  # those that are still searched
    for step in range(decoding.max_new_tokens):
        logprobs = restricted(scores.log_softmax(dim=1), state.tokens.flatten(0, 1), family, decoding)
        parent = _advance(family, decoding, state, logprobs.view(len(images), beams, -1), step)
        best[images] = state.captions[:, : decoding.num_return_sequences]
        going = _can_improve(state, step + 1, decoding.length_penalty).nonzero().squeeze(1)
        if len(going) == 0 or step + 1 == decoding.max_new_tokens:
            break
        rows = (parent + torch.arange(len(images), device=device)[:, None] * beams)[going].flatten()
        state, images, cache = state.select(going), images[going], select_rows(cache, rows)
        last = state.tokens[:, :, -1].reshape(-1, 1)
        scores = family.exact_logits(family.decode(last, encoded, images.repeat_interleave(beams), cache)[:, -1])
    return best.flatten(0, 1)


def _begin(family: Family, decoding: Decoding, size: int, device: torch.device) -> _Beams:
    beams = decoding.num_beams
    running = torch.full((size, beams), NEVER, device=device)
    running[:, 0] = 0  # all beams begin alike: only the first may be continued
    return _Beams(
        running,
        torch.empty((size, beams, 0), dtype=torch.long, device=device),
        torch.full((size, beams), NEVER, device=device),
        torch.full((size, beams, decoding.max_new_tokens), family.pad, dtype=torch.long, device=device),
        torch.zeros((size, beams), dtype=torch.bool, device=device),
        family.pad,
    )


def _advance(family: Family, decoding: Decoding, state: _Beams, logprobs: Tensor, step: int) -> Tensor:
    """One more token for every beam; ``[b, k]``, the beam each new one continues.

    Of the likeliest continuations (enough that k of them do not end), those among the first k that end are collected,
    and the first k that do not end run on. At the longest length all of them end.
    """
    beams, vocabulary = decoding.num_beams, logprobs.shape[2]
    likeliest = (state.running[:, :, None] + logprobs).flatten(1).topk(max(2, 1 + len(family.eos)) * beams)
    parent, token = likeliest.indices // vocabulary, likeliest.indices % vocabulary
    tokens = torch.cat([_beams_at(state.tokens, parent), token[:, :, None]], dim=2)
    ends = torch.isin(token, token.new_tensor(family.eos)) | (step + 1 == decoding.max_new_tokens)
    _collect(
        state, tokens[:, :beams], likeliest.values[:, :beams] / (step + 1) ** decoding.length_penalty, ends[:, :beams]
    )
    running = (likeliest.values + ends * NEVER).topk(beams)
    state.running, state.tokens = running.values, _beams_at(tokens, running.indices)
    return parent.gather(1, running.indices)


def _collect(state: _Beams, tokens: Tensor, scores: Tensor, ends: Tensor) -> None:
    """Keep the best of what was collected and of what ends now."""
    captions = state.captions.clone()
    captions[:, :, : tokens.shape[2]] = tokens
    captions[:, :, tokens.shape[2] :] = state.pad
    merged = torch.cat([state.ended, scores.masked_fill(~ends, NEVER)], dim=1).topk(state.ended.shape[1])
    state.ended = merged.values
    state.captions = _beams_at(torch.cat([state.captions, captions], dim=1), merged.indices)
    state.found = torch.cat([state.found, ends], dim=1).gather(1, merged.indices)


def _beams_at(values: Tensor, index: Tensor) -> Tensor:
    """``values [b, k, ...]`` at ``index [b, m]``."""
    return values[torch.arange(len(values), device=values.device)[:, None], index]


def _can_improve(state: _Beams, length: int, penalty: float) -> Tensor:
    """``[b]`` bool: whether the best running beam, if it ended now, would beat the worst collected one."""
    possible = state.running[:, :1] / length**penalty
    worst = torch.where(state.found, state.ended.min(dim=1, keepdim=True).values, NEVER)
    return (possible > worst).any(dim=1)
