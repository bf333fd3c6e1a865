"""Penalties and returns of every token of a caption: VLRM's rules, carried over from words to the tokens of any model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tellapart.metrics.phrases import EXEMPT, PhraseFinder, Span, covered, repeated_words, vlrm_phrases
from tellapart.types import Rollout


class TokenText:
    """What each token adds to a caption's text, for any tokenizer.

    A piece is what decoding gains when the token follows an ordinary one, found once per token. Where the pieces do not join to
    the caption (a character that several byte-level tokens share), the caption is decoded token by token instead.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._anchor = _ordinary(tokenizer)
        self._before = self._decode([self._anchor])
        self._pieces: dict[int, str] = {}

    def spans(self, ids: Sequence[int]) -> tuple[str, list[Span]]:
        """The text of a caption's tokens and the part of it that each token is; special tokens are empty parts.

        The space before a word belongs to its first token's part and is not counted to it.
        """
        pieces = [self._piece(token) for token in ids]
        text = "".join(pieces)
        if text.strip() != self._decode(ids).strip():
            pieces = self._one_by_one(ids)
            text = "".join(pieces)
        spans, place = [], 0
        for piece in pieces:
            end = place + len(piece)
            spans.append((end - len(piece.lstrip()), end))
            place = end
        return text, spans

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            both = "" if token in self._special else self._decode([self._anchor, token])
            self._pieces[token] = both[len(self._before) :] if both else ""
        return self._pieces[token]

    def _one_by_one(self, ids: Sequence[int]) -> list[str]:
        """What decoding gains with each token; of tokens that share a character the last one gets it."""
        pieces, known = [], ""
        for count in range(1, len(ids) + 1):
            text = self._decode(ids[:count])
            whole = text.rstrip("�") if count < len(ids) else text
            pieces.append(whole[len(known) :] if whole.startswith(known) else "")
            known = whole if whole.startswith(known) else known
        return pieces

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _ordinary(tokenizer: Any) -> int:
    """The id of a token that is a word or letter."""
    special = frozenset(tokenizer.all_special_ids)
    for word in ("a", "the", "x"):
        ids = [token for token in tokenizer(word, add_special_tokens=False)["input_ids"] if token not in special]
        if ids:
            return ids[-1]
    return next(token for token in sorted(tokenizer.get_vocab().values()) if token not in special)


class Penalties:
    """Which tokens of captions VLRM penalises (Dzabraev et al., 2024, section 3).

    A token is *bad* if any listed phrase covers any of it, counted once however many phrases do; it is *repeated* if it belongs
    to a word that occurred before and is not exempt. Punctuation alone is neither.

    Departures, where the paper does not say: phrases are found in the decoded text at the edges of words and whatever their case;
    repetition ignores case; which words count as prepositions and colours is our list.

    Args:
        tokenizer: of the captioner.
        phrases: what is bad; by default the paper's list.
        exempt: words that may be repeated.
        years: whether separate four-digit numbers are bad.
    """

    def __init__(
        self,
        tokenizer: Any,
        phrases: Iterable[str] | None = None,
        *,
        exempt: Collection[str] = EXEMPT,
        years: bool = True,
    ) -> None:
        self.text, self.exempt = TokenText(tokenizer), frozenset(exempt)
        self.find = PhraseFinder(vlrm_phrases() if phrases is None else phrases, years=years)

    def __call__(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """``(bad, repeated)``, each ``[N, T]`` bool, false where the mask is; equal captions are looked at once."""
        known: dict[tuple[int, ...], tuple[list[bool], list[bool]]] = {}
        bad, repeated = (torch.zeros(rollout.mask.shape, dtype=torch.bool) for _ in range(2))
        rows = zip(rollout.tokens.tolist(), rollout.lengths.tolist(), strict=True)
        for i, (tokens, length) in enumerate(rows):
            ids = tuple(tokens[:length])
            if ids not in known:
                known[ids] = self._flags(ids)
            bad[i, :length], repeated[i, :length] = (torch.tensor(flags, dtype=torch.bool) for flags in known[ids])
        return bad.to(rollout.mask.device), repeated.to(rollout.mask.device)

    def _flags(self, ids: Sequence[int]) -> tuple[list[bool], list[bool]]:
        text, spans = self.text.spans(ids)
        return covered(spans, self.find(text)), covered(spans, repeated_words(text, self.exempt))


def token_returns(
    whole: Tensor, bad: Tensor, repeated: Tensor, mask: Tensor, finished: Tensor, *, no_eos_penalty: float = 1.0
) -> Tensor:
    """``[N, T]`` undiscounted return of each token (Dzabraev et al., 2024, equation 1); 0 where masked.

    ``R(t_k) = whole - no_eos - sum_{s >= k} (bad_s + repeated_s)``: what is scored once for the caption counts for every token,
    a penalty for its token and those before.

    Args:
        whole: ``[N]``, the matcher's score and the language model's, added up.
        bad: ``[N, T]``, the penalty of a token in a bad phrase, else 0.
        repeated: ``[N, T]``, the penalty of a token of a repeated word, else 0.
        mask: ``[N, T]`` bool, true on words and EOS.
        finished: ``[N]`` bool, whether the caption ends in EOS.
        no_eos_penalty: penalty of a caption without EOS.
    """
    penalties = (bad.to(whole.dtype) + repeated.to(whole.dtype)) * mask
    ahead = penalties.flip(1).cumsum(dim=1).flip(1)
    unfinished = no_eos_penalty * (~finished).to(whole.dtype)
    return (whole[:, None] - unfinished[:, None] - ahead) * mask
