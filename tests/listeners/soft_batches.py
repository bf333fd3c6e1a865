"""Captions as tokens and as distributions, for listeners that read either."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

EOS, PAD = 2, 0


def captions(texts: list[str], tokenizer, *, width: int | None = None, unfinished: tuple[int, ...] = ()) -> tuple:
    """``(tokens, mask)`` as a captioner draws them: words, EOS, padding; those ``unfinished`` lack their EOS."""
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    rows = [row if i in unfinished else [*row, tokenizer.eos_token_id] for i, row in enumerate(rows)]
    width = width or max(map(len, rows))
    tokens = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    return tokens, torch.arange(width) < torch.tensor([[len(row)] for row in rows])


def soft(
    count: int, width: int, vocabulary: int, eos: int, lengths: list[int], *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """``(words, mask)``: distributions, one-hot EOS from each row's last real place on."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randn(count, width, vocabulary, generator=generator).double().softmax(dim=2)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    for row, length in enumerate(lengths):
        words[row, length - 1 :] = one_hot(torch.tensor(eos), vocabulary).double()
    return words, mask


def check_gradients(embed, words: Tensor, mask: Tensor, places: list[tuple[int, int, int]]) -> None:
    """Finite differences of a function of all embeddings against its gradient, in float64, at some places of ``words``."""
    direction = torch.linspace(-1, 1, embed(words, mask).shape[1]).double()
    leaf = words.clone().requires_grad_()
    value = (embed(leaf, mask).double() @ direction * torch.arange(1.0, len(words) + 1)).sum()
    value.backward()
    for place in places:
        ends = []
        for step in (1e-4, -1e-4):
            moved = words.clone()
            moved[place] += step
            with torch.no_grad():
                ends.append((embed(moved, mask).double() @ direction * torch.arange(1.0, len(words) + 1)).sum())
        slope = float(ends[0] - ends[1]) / 2e-4
        assert abs(slope - float(leaf.grad[place])) < 1e-4 * max(1.0, abs(slope)), place
        assert abs(slope) > 1e-5, place
