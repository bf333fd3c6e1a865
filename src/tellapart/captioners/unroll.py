"""Drawing captions so that gradients flow back through the drawn words (Vered et al., ICCV 2019, section 4).

A step's *spread* is the distribution its word is drawn from; for ``gumbel`` the perturbed one. What is passed on is the spread or
the drawn word's one-hot vector, and in both cases gradients flow as if it had been the spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import fork, in_pieces
from tellapart.captioners.drawing import Restriction, highest, inverse_cdf
from tellapart.captioners.families.base import Family
from tellapart.captioners.modes import eval_mode
from tellapart.draws import base_seed, gumbels, mix_seeds, uniforms
from tellapart.relaxation import Relaxation
from tellapart.types import Decoding


class _Passed(torch.autograd.Function):
    """One tensor of ``[n, V]``, the spread, is all that is kept for the backward pass: written as
    ``(one_hot - spread).detach() + spread`` it would be several, at every step."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, drawn: Tensor, soft: Tensor, ended: Tensor) -> Tensor:
        spread = scores.softmax(dim=1)
        ctx.save_for_backward(spread, ended)
        vectors = spread * soft[:, None]
        word = drawn[:, None]
        return vectors.scatter_(1, word, torch.where(soft[:, None], spread.gather(1, word), 1.0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        spread, ended = ctx.saved_tensors
        flowing = gradient * spread
        flowing -= spread * flowing.sum(dim=1, keepdim=True)
        return flowing.masked_fill_(ended[:, None], 0), None, None, None


def passed_words(scores: Tensor, drawn: Tensor, soft: Tensor, ended: Tensor | None = None) -> Tensor:
    """``[n, V]`` vectors to pass on.

    Args:
        scores: ``[n, V]`` whose softmax is the spread: raw logits, or ``perturbed`` ones.
        drawn: ``[n]`` long, the drawn words.
        soft: ``[n]`` bool, true where the spread is passed, false where the drawn word is.
        ended: ``[n]`` bool, rows that pass the drawn word without gradient, since their caption ended; none: no row.

    Returns:
        A distribution or a one-hot vector per row; gradients flow to ``scores`` as if every row were the softmax.
    """
    ended = torch.zeros_like(soft) if ended is None else ended
    return _Passed.apply(scores, drawn, soft & ~ended, ended)


def perturbed(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """``(logits + noise) / temperature``: with standard Gumbel noise their maximum is a draw from the softmax of ``logits``, and
    their softmax a relaxed one (Jang et al., ICLR 2017)."""
    return (logits + noise) / temperature


class _Chance:
    """Random numbers: keyed by image id, from one number of torch's global generator.

    With ``multinomial``, the words are those that sampling by ``generate`` draws.
    """

    def __init__(self, ids: Sequence[str], relaxation: Relaxation, device: torch.device) -> None:
        self.ids, self.relaxation, self.seed = ids, relaxation, base_seed()
        steps = relaxation.max_new_tokens
        self.numbers = uniforms(ids, steps, self.seed).float().to(device)
        self.soft = (uniforms(ids, steps, mix_seeds(self.seed, "soft")) < relaxation.rho).to(device)

    def __call__(self, logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """``(scores [n, V], drawn [n])`` of a step: the spread's logits, and the words."""
        if self.relaxation.estimator == "multinomial":
            return logits, inverse_cdf(logits.detach(), self.numbers[:, step])
        noise = gumbels(self.ids, logits.shape[1], mix_seeds(self.seed, "gumbel", step))
        scores = perturbed(logits, noise.to(logits), self.relaxation.temperature)
        return scores, highest(scores.detach())


def _begin(family: Family, encoded: Encoded) -> tuple[Tensor, Any]:
    """``([B, D], cache)``: states that predict the first words."""
    with eval_mode(family.model):
        cache = family.new_cache()
        states = family.prefix(encoded, cache)
    return states, in_pieces(cache)


def _read(family: Family, words: Tensor, table: Tensor | None, encoded: Encoded, cache: Any) -> tuple[Tensor, Any]:
    """``([B, D], cache)``: states that predict the words after ``words``, ids ``[B]`` or, with a table, mixtures ``[B, V]``.

    Computed again in the backward pass, it must find modes and cache as they were: so both are its own.
    """
    image, cache = torch.arange(len(words), device=words.device), fork(cache)
    with eval_mode(family.model):
        if table is None:
            return family.decode(words[:, None], encoded, image, cache)[:, -1], cache
        # Out of autocast: a one-hot vector has to give exactly the embedding of its word.
        with torch.autocast(words.device.type, enabled=False):
            embedded = words.to(table.dtype) @ table
        return family.decode_embedded(embedded[:, None], encoded, image, cache)[:, -1], cache


def _call(step: Callable[..., Any], *given: Any) -> Any:
    return step(*given)


def unroll(
    family: Family, encoded: Encoded, ids: Sequence[str], relaxation: Relaxation, *, checkpointed: bool = False
) -> tuple[Tensor, Tensor]:
    """Draw one caption of each image with keys and values cached, one step of the decoder per word.

    Captions that ended stay in the batch: choosing rows of the image's keys and values would copy them, and each copy would be
    kept for the backward pass.

    Args:
        family: the model.
        encoded: states of B images.
        ids: of these images.
        relaxation: how.
        checkpointed: compute the decoder's steps again in the backward pass; kept of a step are its cache, its vector and its
            spread.

    Returns:
        ``[B, T]`` tokens, padded after EOS, and ``[B, T, V]`` words; T is the longest caption's length.

    Raises:
        UsageError: mixtures are to be read and the family cannot.
    """
    table = family.word_embeddings() if relaxation.feed_soft else None
    chance = _Chance(ids, relaxation, encoded.states.device)
    eos = torch.tensor(family.eos, device=encoded.states.device)
    ended = torch.zeros(len(ids), dtype=torch.bool, device=eos.device)
    tokens, words = torch.empty((len(ids), 0), dtype=torch.long, device=eos.device), []
    run = partial(checkpoint, use_reentrant=False) if checkpointed and torch.is_grad_enabled() else _call
    states, cache = run(_begin, family, encoded)
    restricted = Restriction(family, Decoding(), eos.device)
    for step in range(relaxation.max_new_tokens):
        logits = restricted(family.exact_logits(states), tokens)
        scores, drawn = chance(logits, step)
        drawn = torch.where(ended, eos[0], drawn)
        tokens = torch.cat([tokens, drawn.masked_fill(ended, family.pad)[:, None]], dim=1)
        before, ended = ended, ended | torch.isin(drawn, eos)
        constant = before if relaxation.gradient_through_eos else ended
        words.append(passed_words(scores, drawn, chance.soft[:, step], constant))
        if bool(ended.all()) or step + 1 == relaxation.max_new_tokens:
            break
        states, cache = run(_read, family, drawn if table is None else words[-1], table, encoded, cache)
    return tokens, torch.stack(words, dim=1)
