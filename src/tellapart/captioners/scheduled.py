"""Scheduled sampling: what a captioner reads while human captions are scored, some words replaced by its own.

Bengio, Vinyals, Jaitly & Shazeer (NeurIPS 2015) for recurrent captioners, where each word is drawn after the words read so
far; Mihaylova & Martins (ACL 2019) for transformers, where all words are drawn after human ones, in one pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.cache import select_rows
from tellapart.captioners.drawing import Restriction, inverse_cdf
from tellapart.captioners.families.base import Family
from tellapart.captioners.scoring import CHUNK_ELEMENTS, token_states
from tellapart.draws import mix_seeds, uniforms
from tellapart.types import Decoding


def caption_keys(ids: Sequence[str], image: Tensor) -> list[str]:
    """``id/0``, ``id/1``, ... of the captions of each image, in their order: what random numbers are keyed by.

    Args:
        ids: of the images of a batch.
        image: ``[N]``, the image of each caption.
    """
    seen: Counter[int] = Counter()
    keys = []
    for row in image.tolist():
        keys.append(f"{ids[row]}/{seen[row]}")
        seen[row] += 1
    return keys


def words_to_read(
    family: Family,
    encoded: Encoded,
    image: Tensor,
    tokens: Tensor,
    mask: Tensor,
    *,
    keys: Sequence[str],
    probability: float,
    seed: int,
) -> Tensor:
    """``[N, T]``: ``tokens`` with each word replaced, with some probability, by one drawn from the captioner.

    Which words are replaced, and by what, depends on ``seed``, the caption's key and its own words only. A caption's last word
    is never read, so it stays. Call it without gradients: none flow through drawn words.

    Args:
        family: the model.
        encoded: states of B images.
        image: ``[N]``, the image of each caption.
        tokens: ``[N, T]`` caption tokens.
        mask: ``[N, T]`` bool, a run of true from the left.
        keys: of the N captions.
        probability: of each word to be replaced.
        seed: of the random numbers.
    """
    width = tokens.shape[1]
    chance, numbers = (uniforms(keys, width, mix_seeds(seed, use)).to(tokens.device) for use in ("replaced", "word"))
    replaced = (chance < probability) & mask
    replaced[:, :-1] &= mask[:, 1:]
    replaced[:, -1:] = False
    if not bool(replaced.any()):
        return tokens
    draw = _word_by_word if family.recurrent else _in_one_pass
    return draw(family, encoded, image, tokens, mask, replaced, numbers.float())


def _word_by_word(
    family: Family, encoded: Encoded, image: Tensor, tokens: Tensor, mask: Tensor, replaced: Tensor, numbers: Tensor
) -> Tensor:
    """Each word is drawn after those that were read, its own among them."""
    cache = family.new_cache()
    states = family.prefix(encoded, cache)[image]
    cache, read = select_rows(cache, image), tokens.clone()
    for t in range(int(replaced.any(dim=0).nonzero().max()) + 1):
        read[:, t] = torch.where(replaced[:, t], _drawn(family, states, numbers[:, t]), tokens[:, t])
        states = family.decode(read[:, t : t + 1], encoded, image, cache)[:, -1]
    return read


def _in_one_pass(
    family: Family, encoded: Encoded, image: Tensor, tokens: Tensor, mask: Tensor, replaced: Tensor, numbers: Tensor
) -> Tensor:
    """Every word is drawn after human ones."""
    states = token_states(family, encoded, image, tokens, mask)
    row, column = states.place
    chosen = replaced[row, column]
    place = row[chosen], column[chosen]
    size = max(1, CHUNK_ELEMENTS // family.vocab_size)
    pairs = zip(states.hidden[states.index[chosen]].split(size), numbers[place].split(size), strict=True)
    return tokens.index_put(place, torch.cat([_drawn(family, *pair) for pair in pairs]))


def _drawn(family: Family, states: Tensor, numbers: Tensor) -> Tensor:
    """``[n]`` words drawn after ``states [n, D]``, as ``generate`` draws samples."""
    no_words = torch.empty((len(states), 0), dtype=torch.long, device=states.device)
    return inverse_cdf(Restriction(family, Decoding(), states.device)(family.exact_logits(states), no_words), numbers)
