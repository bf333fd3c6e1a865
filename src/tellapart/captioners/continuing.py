"""Continuing captions from each of their prefixes by sampling: the roll-outs that give early feedback (G-GAN)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import select_rows
from tellapart.captioners.drawing import Chooser, Restriction
from tellapart.captioners.families.base import Family
from tellapart.draws import base_seed, uniforms
from tellapart.types import Decoding, Rollout


@dataclass(frozen=True)
class Prefixes:
    """Which prefixes of which captions are continued; M rows, by caption, then length, then sample.

    Args:
        caption: ``[M]`` long, the caption.
        length: ``[M]`` long, its first tokens that are kept.
        sample: ``[M]`` long, which of the continuations of this prefix.
    """

    caption: Tensor
    length: Tensor
    sample: Tensor

    @staticmethod
    def of(lengths: Tensor, shortest: int, count: int) -> Prefixes:
        """All prefixes from ``shortest`` tokens up to all but the last, ``count`` times each.

        Args:
            lengths: ``[N]`` tokens of the captions.
            shortest: of the prefixes; 0 starts from the beginning.
            count: continuations of each.
        """
        rows = [(n, kept) for n, length in enumerate(lengths.tolist()) for kept in range(shortest, length)]
        table = torch.tensor(rows, dtype=torch.long, device=lengths.device).view(-1, 2).repeat_interleave(count, dim=0)
        sample = torch.arange(count, device=lengths.device).repeat(len(rows))
        return Prefixes(table[:, 0], table[:, 1], sample)


def continue_captions(
    family: Family, encoded: Encoded, rollout: Rollout, prefixes: Prefixes, decoding: Decoding, *, row: Tensor
) -> Tensor:
    """``[M, max_new_tokens]`` tokens: every prefix, and what is sampled after it; padded after EOS.

    One loop over places: the captions themselves are read word by word, and their rows of the cache are copied where a prefix
    ends. So a prefix is read once, whatever the number of its continuations, and all of them are continued at once.

    Args:
        family: the model.
        encoded: states of B images.
        rollout: N captions, one of each image, within the longest length.
        prefixes: what is continued.
        decoding: how; a sample.
        row: ``[N]``, the row of ``encoded`` of each caption.
    """
    count, longest, device = len(rollout), decoding.max_new_tokens, encoded.states.device
    image, lengths = row.to(device), rollout.lengths.to(device)
    tokens = torch.full((count + len(prefixes.caption), longest), family.pad, dtype=torch.long, device=device)
    width = min(longest, rollout.tokens.shape[1])
    given = rollout.tokens[:, :width].to(device)
    tokens[:count, :width] = given
    kept = torch.arange(width, device=device) < prefixes.length[:, None]
    tokens[count:, :width] = torch.where(kept, given[prefixes.caption], family.pad)
    owner = torch.cat([torch.arange(count, device=device), prefixes.caption])
    cache = family.new_cache()
    logits = family.exact_logits(family.prefix(encoded, cache))[image]
    cache, rows = select_rows(cache, image), torch.arange(count, device=device)
    restricted = Restriction(family, decoding, device, encoded, image[owner])
    choose = Chooser(restricted, decoding, _numbers(rollout, prefixes, decoding).to(device))
    eos = torch.tensor(family.eos, device=device)
    for step in range(longest):
        begins = ((prefixes.length == step) & (lengths[prefixes.caption] > step)).nonzero().squeeze(1)
        if len(begins):
            place = torch.empty(count, dtype=torch.long, device=device)
            place[rows[rows < count]] = (rows < count).nonzero().squeeze(1)
            parents = torch.cat([torch.arange(len(rows), device=device), place[prefixes.caption[begins]]])
            cache, logits, rows = select_rows(cache, parents), logits[parents], torch.cat([rows, count + begins])
        sampled = choose(logits, tokens, rows, step)
        chosen = torch.where(rows < count, tokens[rows, step], sampled)
        tokens[rows, step] = chosen
        longer = torch.where(rows < count, lengths[rows.clamp(max=count - 1)] > step + 1, ~torch.isin(chosen, eos))
        going = longer.nonzero().squeeze(1)
        if len(going) == 0 or step + 1 == longest:
            break
        if len(going) < len(rows):
            rows, chosen, cache = rows[going], chosen[going], select_rows(cache, going)
        logits = family.exact_logits(family.decode(chosen[:, None], encoded, image[owner[rows]], cache)[:, -1])
    return tokens[count:]


def _numbers(rollout: Rollout, prefixes: Prefixes, decoding: Decoding) -> Tensor:
    """``[N + M, max_new_tokens]`` numbers in [0, 1), keyed by image id; those of the captions themselves choose nothing."""
    longest, count = decoding.max_new_tokens, decoding.num_return_sequences
    numbers = uniforms(rollout.ids(), longest * count * longest, base_seed()).float().view(-1, longest, count, longest)
    device = prefixes.caption.device
    drawn = numbers.to(device)[prefixes.caption, prefixes.length, prefixes.sample]
    return torch.cat([drawn.new_zeros(len(rollout), longest), drawn])
