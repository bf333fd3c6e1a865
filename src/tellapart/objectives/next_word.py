"""Training of a language model on human captions, without their images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tellapart.draws import base_seed
from tellapart.objectives.contrastive import draw_texts
from tellapart.types import Batch, ObjectiveModule, StepOutput


@dataclass(frozen=True)
class Lines:
    """Captions as ``[B, T]`` token ids that begin with BOS and end with EOS, and which of them are not padding."""

    tokens: Tensor
    mask: Tensor


class NextWord(ObjectiveModule):
    """Train a causal language model on human captions: ``L = mean over tokens of -log p(w_t | w_<t)``, EOS counted and BOS
    never (Mikolov et al., 2010; Radford et al., 2018). One caption of each image is drawn in a step.

    Args:
        language_model: a causal one of transformers.
        tokenizer: of that model, with BOS and EOS.
    """

    def __init__(self, language_model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.language_model, self.tokenizer = language_model, tokenizer

    def collect(self, batch: Batch, step: int) -> Lines:
        """One caption of each image, which follows from image id and seed.

        Raises:
            UsageError: an image has no caption.
        """
        texts = draw_texts(batch, base_seed())
        read = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        rows = [[self.tokenizer.bos_token_id, *row, self.tokenizer.eos_token_id] for row in read]
        lengths, width = torch.tensor([len(row) for row in rows]), max(map(len, rows))
        tokens = torch.tensor([row + [self.tokenizer.eos_token_id] * (width - len(row)) for row in rows])
        device = next(self.language_model.parameters()).device
        return Lines(tokens.to(device), (torch.arange(width) < lengths[:, None]).to(device))

    def losses(self, lines: Lines) -> Iterator[StepOutput]:
        """One piece: the negative log-likelihood, summed over tokens."""
        logits = self.language_model(input_ids=lines.tokens, attention_mask=lines.mask.long()).logits
        scored = lines.mask[:, 1:]
        losses = cross_entropy(logits[:, :-1][scored].float(), lines.tokens[:, 1:][scored], reduction="none")
        yield StepOutput(losses.sum(), scored.sum().to(losses.dtype), {"nll": losses.detach()})
