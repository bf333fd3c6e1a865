"""Drawing captions: greedy search, sampling and beam search, and one way into all three."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tellapart.captioners.base import Encoded
from tellapart.captioners.shortlist import Shortlist
from tellapart.captioners.steps import Decodable
from tellapart.draws import base_seed, uniforms
from tellapart.types import Decoding

FEW = 0.75
"""Captions that ended leave the batch when at most this share still runs: leaving copies what the others remember."""

LOOK = 8
"""Steps between two looks at what has ended on a device that must be waited for; on a CPU every step looks."""


def _looks(step: int, device: torch.device) -> bool:
    return device.type == "cpu" or (step + 1) % LOOK == 0


# Greedy search and sampling.


def inverse_cdf(scores: Tensor, uniform: Tensor) -> Tensor:
    """``[n]`` token ids drawn from ``softmax(scores [n, V])`` by one number in [0, 1) a row.

    The smallest id whose cumulative probability exceeds the number: a row's token depends on its own scores and number
    only. Rounding can make the last cumulative value 0.9999999, so the number is scaled by it and kept below it. Scores
    that are not finite give the last id; scoring the caption then tells.
    """
    # In place: fresh memory comes from the system page by page, which may cost more than the sum.
    cumulative = scores.float().softmax(dim=1).cumsum_(dim=1)
    if cumulative.device.type != "cpu":
        cumulative = cumulative.cummax(dim=1).values  # a parallel sum need not rise everywhere; one in order does
    total = cumulative[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniform[:, None].to(total) * total, below)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=scores.shape[1] - 1)


def highest(scores: Tensor) -> Tensor:
    """``[n]`` place of each row's highest of ``scores [n, V]``, the first of equals: ``argmax``, which torch takes 2.5 times as
    long for on a CPU."""
    return scores.max(dim=1).indices


BLOCK = 64
"""Columns that ``largest`` looks at together."""

MANY = 4096
"""Columns from which ``largest`` looks at blocks first."""

WORDS = 64
"""Words for each continuation wanted from which sorting out the words is quicker than all continuations: 10 of 5 beams of 48
images took 0.24 ms instead of 0.40 with 1,000 words, and 0.30 instead of 0.24 with 500."""


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and places ``[n, count]`` of the largest of each row of ``scores [n, V]``, in falling order.

    The largest are in the blocks with the largest maxima: among many columns they are found in those only.
    """
    rows, width = scores.shape
    blocks = width // BLOCK
    if width < MANY or blocks < 2 * count:
        top = scores.topk(count)
        return top.values, top.indices
    whole = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    chosen = whole.amax(dim=2).topk(count).indices
    places = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    rest = torch.arange(blocks * BLOCK, width, device=scores.device).expand(rows, -1)
    places = torch.cat([places, rest], dim=1)
    top = scores.gather(1, places).topk(count)
    return top.values, places.gather(1, top.indices)


def block_repeated_ngrams(scores: Tensor, tokens: Tensor, size: int) -> Tensor:
    """``scores [n, V]`` with ``-inf`` at tokens that would complete an n-gram already in ``tokens [n, t]``, of which ids
    without a score, such as those below 0, are left out."""
    if tokens.shape[1] < size:
        return scores
    windows = tokens.unfold(1, size, 1)
    last = tokens[:, None, tokens.shape[1] - size + 1 :]
    following = windows[:, :, -1]
    known = (following >= 0) & (following < scores.shape[1])
    found = (windows[:, :, :-1] == last).all(dim=2) & known
    # the least of a score and these: choosing the places that were found would make a GPU wait for their number
    bounds = torch.full_like(found, torch.inf, dtype=scores.dtype).masked_fill(found, -torch.inf)
    return scores.scatter_reduce(1, following.masked_fill(~known, 0), bounds, "amin")


class Restriction:
    """What may not follow a text. As in Hugging Face's ``generate``, the start tokens and the prompt count as part of the text in
    which n-grams may not repeat; padding, which depends on the other images, does not.

    Its ids are copied to the device once: at every word a GPU would have to wait for each of them.

    Args:
        family: the model.
        decoding: what is forbidden.
        device: of the scores.
        encoded: states of B images; needed only where n-grams may not repeat.
        image: ``[N]``, the image of each caption; none: one caption of each.
    """

    def __init__(
        self,
        family: Decodable,
        decoding: Decoding,
        device: torch.device,
        encoded: Encoded | None = None,
        image: Tensor | None = None,
    ) -> None:
        self.size, self.least = decoding.no_repeat_ngram_size, decoding.min_new_tokens
        self.never = torch.tensor(family.never_drawn, dtype=torch.long, device=device) if family.never_drawn else None
        self.eos = torch.tensor(family.eos, device=device) if self.least else None
        self.before: Tensor | None = None
        if self.size:
            assert encoded is not None, "the prompt may differ between images"
            before = family.before_captions(encoded)
            self.before = before if image is None else before[image]

    def __call__(self, scores: Tensor, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """``scores [n, V]`` of what may follow ``tokens [n, t]``, ``-inf`` where it may not.

        Args:
            scores: of the next words.
            tokens: of ``n`` captions.
            rows: ``[n]``, which of the N captions these are; none: all of them.
        """
        if self.never is not None:
            scores = scores.index_fill(1, self.never, -torch.inf)
        if self.eos is not None and tokens.shape[1] < self.least:
            scores = scores.index_fill(1, self.eos, -torch.inf)
        if self.before is not None:
            text = torch.cat([self.before if rows is None else self.before[rows], tokens], dim=1)
            scores = block_repeated_ngrams(scores, text, self.size)
        return scores


class Chooser:
    """Turns states or raw logits into next tokens as ``decoding`` asks.

    Args:
        restricted: what may not follow.
        decoding: how.
        uniforms: as for ``draw``.
        shortlist: of greedy search alone, what may spare the logits.
    """

    def __init__(
        self,
        restricted: Restriction,
        decoding: Decoding,
        uniforms: Tensor | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.restricted, self.decoding, self.shortlist = restricted, decoding, shortlist
        greedy = None if uniforms is None else uniforms[:, 0].isnan()
        self.greedy = greedy if greedy is not None and greedy.any() else None
        self.uniforms = None if uniforms is None else uniforms.nan_to_num(0.0)
        self.warpers = LogitsProcessorList()
        if not decoding.do_sample:
            return
        if decoding.temperature != 1:
            self.warpers.append(TemperatureLogitsWarper(decoding.temperature))
        if decoding.top_k > 0:
            self.warpers.append(TopKLogitsWarper(decoding.top_k))
        if decoding.top_p < 1:
            self.warpers.append(TopPLogitsWarper(decoding.top_p))

    def __call__(self, logits: Tensor, tokens: Tensor, rows: Tensor, step: int) -> Tensor:
        """``[n]`` tokens of a step, given the ``rows`` of ``tokens [N, longest]`` that are still in the batch."""
        drawn = self._drawn(tokens, rows, step)
        scores = self.restricted(logits, drawn, rows)
        if self.uniforms is None:
            return highest(scores)
        sampled = inverse_cdf(self.warpers(drawn, scores), self.uniforms[rows, step])
        return sampled if self.greedy is None else torch.where(self.greedy[rows], highest(scores), sampled)

    def without_logits(self, states: Tensor, tokens: Tensor, rows: Tensor, step: int) -> Tensor | None:
        """The tokens that ``__call__`` gives for the logits of ``states [n, D]``, without computing these; none where they are
        needed."""
        if self.shortlist is None:
            return None
        drawn = self._drawn(tokens, rows, step)
        return self.shortlist.highest(states, partial(self.restricted, tokens=drawn, rows=rows))

    def _drawn(self, tokens: Tensor, rows: Tensor, step: int) -> Tensor:
        """The words before a step. Only repeated n-grams depend on the words themselves, and choosing rows would copy them at
        every step."""
        return tokens[rows, :step] if self.decoding.no_repeat_ngram_size else tokens[: len(rows), :step]


def draw(
    family: Decodable, encoded: Encoded, decoding: Decoding, uniforms: Tensor | None, *, logprobs: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Draw ``num_return_sequences`` captions of every image, or as many as there are numbers for, image by image.

    The first step, and the image's keys and values, are computed once per image and shared by its captions. Captions
    that ended stay in the batch until enough have, and then leave it together.

    Args:
        family: the model.
        encoded: states of B images.
        decoding: how; beam search is not done here.
        uniforms: ``[B * captions per image, max_new_tokens]`` in [0, 1) for sampling, a row of NaN for a greedy caption among
            samples; none for greedy search alone.
        logprobs: also return the raw log-probability of each token, ``[N, max_new_tokens]`` float32, 0 after EOS.

    Returns:
        ``[N, max_new_tokens]`` tokens, padded after EOS, and the log-probabilities or none.
    """
    count = decoding.num_return_sequences if uniforms is None else len(uniforms) // len(encoded.states)
    steps = family.steps(encoded, count, decoding.max_new_tokens)
    states, device = steps.first, steps.first.device
    alone = uniforms is None and count == 1 and not logprobs
    restricted = Restriction(family, decoding, device, encoded, steps.image)
    choose = Chooser(restricted, decoding, uniforms, family.shortlist() if alone else None)
    eos = torch.tensor(family.eos, device=device)
    tokens = torch.full((len(steps.image), decoding.max_new_tokens), family.pad, device=device)
    scored = torch.zeros(tokens.shape, device=device) if logprobs else None
    rows = torch.arange(len(tokens), device=device)
    ended = torch.zeros(len(tokens), dtype=torch.bool, device=device)
    with steps.inference():
        for step in range(decoding.max_new_tokens):
            chosen = choose.without_logits(states, tokens, rows, step)
            if chosen is None:
                logits = family.exact_logits(states)
                logits = logits[steps.image] if step == 0 and count > 1 else logits
                chosen = choose(logits, tokens, rows, step)
            tokens[rows, step] = chosen.masked_fill(ended, family.pad)
            if scored is not None:
                logprob = logits.log_softmax(dim=1).gather(1, chosen[:, None]).squeeze(1)
                scored[rows, step] = logprob.masked_fill(ended, 0)
            ended = ended | torch.isin(chosen, eos)
            if step + 1 == decoding.max_new_tokens:
                break
            if _looks(step, device):
                going = (~ended).nonzero().squeeze(1)
                if len(going) == 0:
                    break
                if len(going) <= FEW * len(rows):
                    steps.keep(going)
                    rows, chosen, ended = rows[going], chosen[going], ended[going]
            states = steps.read(chosen)
    return tokens, scored


# Beam search over any family, with the decisions of Hugging Face's ``generate``.

NEVER = -1.0e9
"""Score of what must not be chosen; finite, so that ranks among such stay defined."""


@dataclass
class _Beams:
    """State of the search for b images: k running beams, and the k best that ended.

    Args:
        running: ``[b, k]`` summed log-probabilities.
        tokens: ``[b, k, t]`` of the running beams.
        ended: ``[b, k]`` scores of those that ended, divided by length to the power of the length penalty.
        captions: ``[b, k, max_new_tokens]`` tokens of those that ended.
        found: ``[b, k]`` bool, whether a place holds one.
        eos: ids that end a caption.
        pad: id that fills captions after their end.
    """

    running: Tensor
    tokens: Tensor
    ended: Tensor
    captions: Tensor
    found: Tensor
    eos: Tensor
    pad: int

    def select(self, images: Tensor) -> _Beams:
        """The images at these places."""
        return _Beams(
            self.running[images],
            self.tokens[images],
            self.ended[images],
            self.captions[images],
            self.found[images],
            self.eos,
            self.pad,
        )


def beam_search(family: Decodable, encoded: Encoded, decoding: Decoding) -> Tensor:
    """``[B * num_return_sequences, max_new_tokens]`` tokens, best first for each image, padded after EOS.

    The search keeps ``num_beams`` beams, collects those that end, and finishes an image when no running beam can beat the
    worst of ``num_beams`` collected ones at its present length (``early_stopping=False``). Finished images leave the batch
    together, once enough have. Captions are those of transformers 5's ``generate`` with the same settings;
    log-probabilities after ``no_repeat_ngram_size`` and ``min_new_tokens`` are not renormalised, as there.

    Args:
        family: the model.
        encoded: states of B images.
        decoding: how; ``num_beams`` above 1.
    """
    return _searched(family, encoded, decoding, None)[0]


def beams_with_greedy(
    family: Decodable, encoded: Encoded, decoding: Decoding, greedy: Decoding
) -> tuple[Tensor, Tensor]:
    """The beams of ``beam_search``, and the greedy caption of every image, in one loop.

    Args:
        family: the model.
        encoded: states of B images.
        decoding: of the beams.
        greedy: of the greedy captions; its ``max_new_tokens`` is that of the beams.

    Returns:
        ``[B * num_return_sequences, max_new_tokens]`` and ``[B, max_new_tokens]`` tokens, padded after EOS.
    """
    tokens, alone = _searched(family, encoded, decoding, greedy)
    assert alone is not None
    return tokens, alone


class _Alone:
    """The greedy caption of each of B images, read next to the image's beams.

    Args:
        family: the model.
        decoding: how.
        encoded: states of B images.
        device: of the logits.
    """

    def __init__(self, family: Decodable, decoding: Decoding, encoded: Encoded, device: torch.device) -> None:
        size = len(encoded.states)
        self.tokens = torch.full((size, decoding.max_new_tokens), family.pad, device=device)
        self.ended = torch.zeros(size, dtype=torch.bool, device=device)
        self._family, self._eos = family, torch.tensor(family.eos, device=device)
        self._choose = Chooser(Restriction(family, decoding, device, encoded), decoding)

    def __call__(self, logits: Tensor, images: Tensor, step: int) -> Tensor:
        """``[b]`` next words of the images that are still in the batch, given ``logits [b, V]``."""
        chosen = self._choose(logits, self.tokens, images, step)
        ended = self.ended[images]
        self.tokens[images, step] = chosen.masked_fill(ended, self._family.pad)
        self.ended[images] = ended | torch.isin(chosen, self._eos)
        return chosen


def _searched(
    family: Decodable, encoded: Encoded, decoding: Decoding, greedy: Decoding | None
) -> tuple[Tensor, Tensor | None]:
    """Rows of an image are its beams and, if asked for, its greedy caption after them."""
    size, beams = len(encoded.states), decoding.num_beams
    count = beams if greedy is None else beams + 1
    steps = family.steps(encoded, count, decoding.max_new_tokens, beams=True)
    logits = family.exact_logits(steps.first)[steps.image]
    device = logits.device
    state, restricted = _begin(family, decoding, size, device), Restriction(family, decoding, device, encoded)
    alone = None if greedy is None else _Alone(family, greedy, encoded, device)
    best = torch.full((size, decoding.num_return_sequences, decoding.max_new_tokens), family.pad, device=device)
    images = torch.arange(size, device=device)  # those in the batch
    searched = torch.ones(size, dtype=torch.bool, device=device)  # of these, those that are not finished
    with steps.inference():
        for step in range(decoding.max_new_tokens):
            rows = logits.unflatten(0, (-1, count))
            scores = rows[:, :beams].flatten(0, 1).log_softmax(dim=1)
            logprobs = restricted(scores, state.tokens.flatten(0, 1), images.repeat_interleave(beams))
            parent = _advance(family, decoding, state, logprobs, step)
            found = state.captions[:, : decoding.num_return_sequences]
            best[images] = torch.where(searched[:, None, None], found, best[images])
            searched = searched & _can_improve(state, step + 1, decoding.length_penalty)
            words = state.tokens[:, :, -1]
            if alone is not None:
                words = torch.cat([words, alone(rows[:, -1], images, step)[:, None]], dim=1)
                parent = torch.nn.functional.pad(parent, (0, 1), value=beams)
            if step + 1 == decoding.max_new_tokens:
                break
            steps.follow((parent + torch.arange(len(images), device=device)[:, None] * count).flatten())
            if _looks(step, device):
                runs = searched if alone is None else searched | ~alone.ended[images]
                going = runs.nonzero().squeeze(1)
                if len(going) == 0:
                    break
                if len(going) <= FEW * len(images):
                    steps.keep((going[:, None] * count + torch.arange(count, device=device)).flatten())
                    state, images, searched, words = state.select(going), images[going], searched[going], words[going]
            logits = family.exact_logits(steps.read(words.flatten()))
    return best.flatten(0, 1), None if alone is None else alone.tokens


def _begin(family: Decodable, decoding: Decoding, size: int, device: torch.device) -> _Beams:
    beams = decoding.num_beams
    running = torch.full((size, beams), NEVER, device=device)
    running[:, 0] = 0  # all beams begin alike: only the first may be continued
    return _Beams(
        running,
        torch.empty((size, beams, 0), dtype=torch.long, device=device),
        torch.full((size, beams), NEVER, device=device),
        torch.full((size, beams, decoding.max_new_tokens), family.pad, dtype=torch.long, device=device),
        torch.zeros((size, beams), dtype=torch.bool, device=device),
        torch.tensor(family.eos, device=device),
        family.pad,
    )


def _advance(family: Decodable, decoding: Decoding, state: _Beams, logprobs: Tensor, step: int) -> Tensor:
    """One more token for every beam, given ``logprobs [b * k, V]``; ``[b, k]``, the beam each new one continues.

    Of the likeliest continuations (enough that k of them do not end), those among the first k that end are collected,
    and the first k that do not end run on. At the longest length all of them end.
    """
    beams = decoding.num_beams
    most = max(2, 1 + len(family.eos)) * beams
    likeliest, parent, token = _likeliest(state.running, logprobs.unflatten(0, (-1, beams)), most)
    tokens = torch.cat([_beams_at(state.tokens, parent), token[:, :, None]], dim=2)
    ends = torch.isin(token, state.eos) | (step + 1 == decoding.max_new_tokens)
    _collect(state, tokens[:, :beams], likeliest[:, :beams] / (step + 1) ** decoding.length_penalty, ends[:, :beams])
    running = (likeliest + ends * NEVER).topk(beams)
    state.running, state.tokens = running.values, _beams_at(tokens, running.indices)
    return parent.gather(1, running.indices)


def _likeliest(running: Tensor, logprobs: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``count`` likeliest continuations: their scores ``[b, count]``, the beams they continue, and their words.

    Args:
        running: ``[b, k]`` scores of the beams.
        logprobs: ``[b, k, V]`` of what follows each; may be overwritten.
        count: how many.
    """
    beams, vocabulary = logprobs.shape[1:]
    scores = logprobs.add_(running[:, :, None])
    if vocabulary < WORDS * count:
        top = scores.flatten(1).topk(count)
        return top.values, top.indices // vocabulary, top.indices % vocabulary
    words = largest(scores.amax(dim=1), count)[1]  # they are among those that are likeliest after any beam
    top = scores.gather(2, words[:, None].expand(-1, beams, -1)).flatten(1).topk(count)
    return top.values, top.indices // count, words.gather(1, top.indices % count)


def _collect(state: _Beams, tokens: Tensor, scores: Tensor, ends: Tensor) -> None:
    """Keep the best of what was collected and of what ends now."""
    captions = torch.nn.functional.pad(tokens, (0, state.captions.shape[2] - tokens.shape[2]), value=state.pad)
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


def draw_captions(
    family: Decodable, encoded: Encoded, ids: Sequence[str], decoding: Decoding, *, logprobs: bool
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


def draw_with_greedy(
    family: Decodable, encoded: Encoded, ids: Sequence[str], decoding: Decoding, greedy: Decoding
) -> tuple[Tensor, Tensor]:
    """Samples or beams as ``draw_captions`` draws them, and the greedy caption of every image, in one loop.

    Args:
        family: the model.
        encoded: states of B images.
        ids: of these images.
        decoding: of the samples or beams.
        greedy: of the greedy captions; of the same longest length, and next to samples of the same restrictions.

    Returns:
        ``[B * num_return_sequences, max_new_tokens]`` and ``[B, max_new_tokens]`` tokens, padded after EOS.
    """
    if decoding.num_beams > 1:
        return beams_with_greedy(family, encoded, decoding, greedy)
    numbers = _numbers(encoded, ids, decoding)
    nothing = torch.full_like(numbers[:, :1], torch.nan)
    tokens, _ = draw(family, encoded, decoding, torch.cat([numbers, nothing], dim=1).flatten(0, 1))
    rows = tokens.unflatten(0, (len(ids), -1))
    return rows[:, :-1].flatten(0, 1), rows[:, -1]


def _numbers(encoded: Encoded, ids: Sequence[str], decoding: Decoding) -> Tensor:
    """``[B, num_return_sequences, max_new_tokens]`` numbers in [0, 1) that sampling takes."""
    shape = (-1, decoding.num_return_sequences, decoding.max_new_tokens)
    numbers = uniforms(ids, decoding.num_return_sequences * decoding.max_new_tokens, base_seed())
    return numbers.view(shape).float().to(encoded.states.device)
