"""Drawing captions: greedy search and sampling."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import select_rows
from tellapart.captioners.families.base import Family
from tellapart.types import Decoding


def inverse_cdf(scores: Tensor, uniform: Tensor) -> Tensor:
    """``[n]`` token ids drawn from ``softmax(scores [n, V])`` by one number in [0, 1) a row.

    The smallest id whose cumulative probability exceeds the number: a row's token depends on its own scores and number
    only. Rounding can make the last cumulative value 0.9999999, so the number is scaled by it and kept below it. Scores
    that are not finite give the last id; scoring the caption then tells.
    """
    cumulative = scores.float().softmax(dim=1).cumsum(dim=1)
    if cumulative.device.type != "cpu":
        cumulative = cumulative.cummax(dim=1).values  # a parallel sum need not rise everywhere; one in order does
    total = cumulative[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniform[:, None].to(total) * total, below)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=scores.shape[1] - 1)


def block_repeated_ngrams(scores: Tensor, tokens: Tensor, size: int) -> Tensor:
    """``scores [n, V]`` with ``-inf`` at tokens that would complete an n-gram already in ``tokens [n, t]``."""
    if tokens.shape[1] < size:
        return scores
    windows = tokens.unfold(1, size, 1)
    last = tokens[:, None, tokens.shape[1] - size + 1 :]
    rows, places = (windows[:, :, :-1] == last).all(dim=2).nonzero(as_tuple=True)
    return scores.index_put((rows, windows[rows, places, -1]), scores.new_tensor(-torch.inf))


def restricted(scores: Tensor, tokens: Tensor, family: Family, decoding: Decoding) -> Tensor:
    """``scores [n, V]`` of what may follow ``tokens [n, t]``, ``-inf`` where ``decoding`` forbids it.

    As in Hugging Face's ``generate``, the start tokens count as part of the text in which n-grams may not repeat.
    """
    if family.never_drawn:
        scores = scores.index_fill(1, torch.tensor(family.never_drawn, device=scores.device), -torch.inf)
    if tokens.shape[1] < decoding.min_new_tokens:
        scores = scores.index_fill(1, torch.tensor(family.eos, device=scores.device), -torch.inf)
    if decoding.no_repeat_ngram_size:
        start = tokens.new_tensor(family.start).expand(len(tokens), -1)
        scores = block_repeated_ngrams(scores, torch.cat([start, tokens], dim=1), decoding.no_repeat_ngram_size)
    return scores


class _Chooser:
    """Turns raw logits into next tokens as ``decoding`` asks."""

    def __init__(self, family: Family, decoding: Decoding, uniforms: Tensor | None, vocabulary: int) -> None:
        self.family, self.decoding, self.uniforms = family, decoding, uniforms
        self.greedy = None if uniforms is None else uniforms[:, 0].isnan()
        self.warpers = LogitsProcessorList()
        if not decoding.do_sample:
            return
        if decoding.temperature != 1:
            self.warpers.append(TemperatureLogitsWarper(decoding.temperature))
        if 0 < decoding.top_k < vocabulary:
            self.warpers.append(TopKLogitsWarper(decoding.top_k))
        if decoding.top_p < 1:
            self.warpers.append(TopPLogitsWarper(decoding.top_p))

    def __call__(self, logits: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:
        """``[n]`` next tokens after ``tokens [n, t]``, whose places in the whole rollout are ``rows``."""
        scores = restricted(logits, tokens, self.family, self.decoding)
        if self.uniforms is None or self.greedy is None:
            return scores.argmax(dim=1)
        sampled = inverse_cdf(self.warpers(tokens, scores), self.uniforms[rows, tokens.shape[1]].nan_to_num(0.0))
        return torch.where(self.greedy[rows], scores.argmax(dim=1), sampled) if self.greedy.any() else sampled


def draw(
    family: Family, encoded: Encoded, decoding: Decoding, uniforms: Tensor | None, *, logprobs: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Draw ``num_return_sequences`` captions of every image, or as many as there are numbers for, image by image.

    The first step, and the image's keys and values, are computed once an image and shared by its captions. Captions
    that ended leave the batch and the cache.

    Args:
        family: the model.
        encoded: states of B images.
        decoding: how; beam search is not done here.
        uniforms: ``[B * captions an image, max_new_tokens]`` in [0, 1) for sampling, a row of NaN for a greedy caption among
            samples; none for greedy search alone.
        logprobs: also return the raw log-probability of each token, ``[N, max_new_tokens]`` float32, 0 after EOS.

    Returns:
        ``[N, max_new_tokens]`` tokens, padded after EOS, and the log-probabilities or none.
    """
    device, count = encoded.states.device, decoding.num_return_sequences
    count = count if uniforms is None else len(uniforms) // len(encoded.states)
    cache = family.new_cache()
    logits = family.exact_logits(family.prefix(encoded, cache))
    image = torch.arange(len(encoded.states), device=device).repeat_interleave(count)
    cache, logits = (select_rows(cache, image), logits[image]) if count > 1 else (cache, logits)
    choose = _Chooser(family, decoding, uniforms, logits.shape[1])
    eos = torch.tensor(family.eos, device=device)
    tokens = torch.full((len(image), decoding.max_new_tokens), family.pad, dtype=torch.long, device=device)
    scored = torch.zeros(tokens.shape, device=device) if logprobs else None
    rows, drawn = torch.arange(len(image), device=device), tokens[:, :0]
    for step in range(decoding.max_new_tokens):
        chosen = choose(logits, drawn, rows)
        tokens[rows, step] = chosen
        if scored is not None:
            scored[rows, step] = logits.log_softmax(dim=1).gather(1, chosen[:, None]).squeeze(1)
        going = (~torch.isin(chosen, eos)).nonzero().squeeze(1)
        if len(going) == 0 or step + 1 == decoding.max_new_tokens:
            break
        if len(going) < len(rows):
            rows, chosen, cache = rows[going], chosen[going], select_rows(cache, going)
        drawn = tokens[rows, : step + 1]
        logits = family.exact_logits(family.decode(chosen[:, None], encoded, image[rows], cache)[:, -1])
    return tokens, scored
