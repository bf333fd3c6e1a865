"""Whose words a listener reads: the ids of a captioner, as ids of the listener."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.listeners.loading import vocabulary_of

ANY_LISTENER = "a method that any CLIP or SigLIP will do for: reinforce_joint, luo2018 or scst"

_ROLES = {
    "unk": ("unk_token_id",),
    "pad": ("pad_token_id", "eos_token_id", "sep_token_id"),
    "bos": ("bos_token_id", "cls_token_id", "pad_token_id", "eos_token_id"),
    "eos": ("eos_token_id", "sep_token_id"),
}
"""Role -> the tokenizer's attributes that may name the id which plays it, best first; EOS comes last, and so wins where ids
have several roles."""


@dataclass(frozen=True)
class Words:
    """The vocabulary that a captioner writes with.

    Args:
        tokenizer: the captioner's.
        size: V, the captioner's number of logits, which may be more than the tokenizer has tokens.
        eos: ids that end its captions.
    """

    tokenizer: Any
    size: int
    eos: tuple[int, ...]


def role_id(tokenizer: Any, role: str) -> int:
    """The id that a tokenizer has for ``unk``, ``pad``, ``bos`` or ``eos``; the next best, or 0, where it has none."""
    found = (getattr(tokenizer, name) for name in _ROLES[role])
    return next((token for token in found if token is not None), 0)


def ids_in(tokenizer: Any, words: Words, *, reader: str) -> Tensor:
    """``[V]`` long: what each id of a captioner is among those of a listener's ``tokenizer``.

    With equal vocabularies an id is itself. Otherwise every word of the captioner must be one whole word to the listener,
    which is tried: written twice it must be read as the same token twice. So a sentence has the same words to both.
    Special tokens are mapped by their role; ids without a token are padding. Words that only the listener has do no harm.

    Args:
        tokenizer: the listener's.
        words: the captioner's.
        reader: what the complaint calls the listener.

    Raises:
        UsageError: the listener lacks a word, or one of the two writes with parts of words.
    """
    own, ids = words.tokenizer, torch.full((words.size,), role_id(tokenizer, "pad"))
    special = {*own.all_special_ids, *words.eos}
    plain = [(word, token) for word, token in vocabulary_of(own) if token not in special and token < words.size]
    places = torch.tensor([token for _, token in plain], dtype=torch.long)
    equal = vocabulary_of(own) == vocabulary_of(tokenizer)
    ids[places] = places if equal else _whole_words(own, places, tokenizer, reader)
    for role, names in _ROLES.items():
        token = getattr(own, names[0])
        if token is not None and token < words.size:
            ids[token] = role_id(tokenizer, role)
    ids[list(words.eos)] = role_id(tokenizer, "eos")
    return ids


def _whole_words(own: Any, tokens: Tensor, tokenizer: Any, reader: str) -> Tensor:
    """The listener's id of each of the captioner's ``tokens``."""
    once, twice = (
        own.batch_decode(tokens[:, None].expand(-1, count).tolist(), clean_up_tokenization_spaces=False)
        for count in (1, 2)
    )
    written = [word.strip() for word in once]
    read = tokenizer([f"{word} {word}" for word in written], add_special_tokens=False, verbose=False)["input_ids"]
    strange = [
        word
        for word, pair, ids in zip(written, twice, read, strict=True)
        if pair.strip() != f"{word} {word}" or len(ids) != 2 or ids[0] != ids[1] or ids[0] == tokenizer.unk_token_id
    ]
    if strange:
        raise UsageError(
            f"{reader} does not have {len(strange)} of the captioner's {len(written)} words, first {strange[0]!r}, as whole "
            "words of its own, so it cannot read distributions over them: train one with the captioner's words "
            f"(tellapart train-listener with listener.vocabulary), or choose {ANY_LISTENER}."
        )
    return torch.tensor([ids[0] for ids in read], dtype=torch.long)
