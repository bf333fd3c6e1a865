"""The caption metrics as a ``compute_metrics`` of Hugging Face's ``Trainer`` and ``Seq2SeqTrainer``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tellapart.errors import UsageError
from tellapart.evaluation.measures import in_words, token_measures, token_style
from tellapart.evaluation.meteor import meteor_figures
from tellapart.metrics.meteor_data import MISSING, source

logger = logging.getLogger(__name__)

IGNORED = -100
"""Padding of labels and gathered predictions; not a token."""


class Decoder(Protocol):
    """The methods needed of a tokenizer, or of a processor that has one."""

    def batch_decode(self, sequences: Any, *, skip_special_tokens: bool) -> list[str]:
        """Token ids -> texts."""
        ...


class ComputeMetrics:
    """Bleu_1..4, ROUGE_L, CIDEr and signs of a collapse, of the captions of an evaluation.

    Generated ids (``predict_with_generate=True``) are captions. Of logits, which a plain ``Trainer`` gives, the most
    likely token at each place of the label is taken: this is not a caption, since each token saw the true ones before it.
    Those of a decoder-only model, which predict the next place, need ``causal``.

    Args:
        tokenizer: decodes ids; one with ``pad_token_id`` or ``eos_token_id``, or a processor that holds it.
        references: captions of every image of the evaluation data, in its order; null takes the labels as the only
            reference of each row.
        meteor: also METEOR, where its data are installed; it costs a few milliseconds per caption.
        causal: whether logits are of a decoder-only model, so that those of a place predict the label of the next.
    """

    def __init__(
        self,
        tokenizer: Decoder,
        references: Sequence[Sequence[str]] | None = None,
        *,
        meteor: bool = False,
        causal: bool = False,
    ) -> None:
        self.meteor = meteor and source() is not None
        if meteor and not self.meteor:
            logger.warning("%s", MISSING)
        self.tokenizer, self.causal = tokenizer, causal
        self.references = None if references is None else [list(captions) for captions in references]

    def __call__(self, prediction: Any) -> dict[str, float]:
        """The metrics of an ``EvalPrediction`` (``predictions``, ``label_ids``).

        Raises:
            UsageError: there are references of another number of images.
        """
        ids = prediction.predictions
        ids = np.asarray(ids[0] if isinstance(ids, tuple) else ids)
        if ids.ndim == 3:
            logger.warning("these are metrics of teacher-forced tokens: set predict_with_generate=True for captions.")
            labels, ids = np.asarray(prediction.label_ids), ids.argmax(-1)
            if self.causal:
                labels, ids = labels[:, 1:], ids[:, :-1]
            ids = np.where(labels == IGNORED, IGNORED, ids) if labels.shape == ids.shape else ids
        captions = self._decode(ids)
        references = self.references
        if references is None:
            references = [[text] for text in self._decode(np.asarray(prediction.label_ids))]
        if len(references) != len(captions):
            raise UsageError(
                f"compute_metrics got {len(captions)} captions but has references of {len(references)} images: give "
                "those of the evaluation data, in its order."
            )
        numbered = {str(i): text for i, text in enumerate(captions)}
        words, targets = in_words(numbered, dict(zip(numbered, references, strict=True)))
        further = meteor_figures(words, targets)[0] if self.meteor else {}
        return token_measures(words, targets)[0] | further | token_style(words)[0]

    def _decode(self, ids: np.ndarray) -> list[str]:
        holder = getattr(self.tokenizer, "tokenizer", self.tokenizer)
        pad = getattr(holder, "pad_token_id", None)
        pad = getattr(holder, "eos_token_id", None) if pad is None else pad
        filled = np.where(ids == IGNORED, 0 if pad is None else pad, ids)
        return [text.strip() for text in self.tokenizer.batch_decode(filled, skip_special_tokens=True)]


def compute_metrics(
    tokenizer: Decoder,
    references: Sequence[Sequence[str]] | None = None,
    *,
    meteor: bool = False,
    causal: bool = False,
) -> Callable[[Any], dict[str, float]]:
    """The function for ``Trainer(compute_metrics=...)``; arguments are those of ``ComputeMetrics``."""
    return ComputeMetrics(tokenizer, references, meteor=meteor, causal=causal)
