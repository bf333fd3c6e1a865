"""Rewards from agreement with the human captions of an image."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.metrics.cider import CiderDScorer, DocumentFrequencies, PreparedReferences
from tellapart.metrics.tokenizer import tokenize
from tellapart.types import Rollout

__all__ = ["CiderD", "DocumentFrequencies"]

logger = logging.getLogger(__name__)

FEW_IMAGES = 100


class CiderD:
    """CIDEr-D with the document frequencies of the *training* references, on its own scale of 0 to 10.

    The reward of SCST (Rennie et al. 2017). Captions and references are cut into words exactly as for the metric. The
    end of a caption is a token of its own, which a caption cut at the longest length lacks, so that leaving off the
    end costs reward. A caption costs one pass over its n-grams: the vectors of an image's references are prepared when
    it is first seen.

    Args:
        document_frequencies: ``DocumentFrequencies.from_references(train.references)``.
        prepared_images: keep the vectors of this many images, some 60 kB each.

    Raises:
        UsageError: the document frequencies are of a single image, of which every n-gram weighs nothing.
    """

    def __init__(self, document_frequencies: DocumentFrequencies, *, prepared_images: int = 10_000) -> None:
        images = document_frequencies.images
        if images < 2:
            raise UsageError(
                f"CIDEr-D takes its document frequencies from {images} image(s), so that every reward is 0: "
                "give more training images with references."
            )
        if images < FEW_IMAGES:
            logger.warning(
                "CIDEr-D takes its document frequencies from only %d images: rewards will be coarse.", images
            )
        self.document_frequencies, self.prepared_images = document_frequencies, prepared_images
        self._scorer = CiderDScorer(document_frequencies)
        self._closing = [document_frequencies.end] if document_frequencies.end else []
        self._prepared: dict[tuple[str, ...], PreparedReferences] = {}

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32.

        Raises:
            UsageError: an image has no references.
        """
        batch, rows = rollout.batch, rollout.image.tolist()
        prepared = {row: self._prepare(batch.ids[row], batch.references[row]) for row in dict.fromkeys(rows)}
        captions = zip(tokenize(rollout.texts), rollout.finished.tolist(), rows, strict=True)
        scores = [
            self._scorer.score(text.split() + (self._closing if finished else []), prepared[row])
            for text, finished, row in captions
        ]
        return torch.tensor(scores, dtype=torch.float32, device=rollout.image.device)

    def _prepare(self, name: str, references: Sequence[str]) -> PreparedReferences:
        key = tuple(references)
        found = self._prepared.get(key)
        if found is not None:
            return found
        if not any(reference.strip() for reference in references):
            raise UsageError(
                f"the CIDEr-D reward needs references, but image {name!r} has none: "
                "leave such images out of training, or choose a reward that reads the image."
            )
        if len(self._prepared) >= self.prepared_images:
            del self._prepared[next(iter(self._prepared))]  # the oldest: an epoch visits images in turn
        self._prepared[key] = self._scorer.prepare([text.split() + self._closing for text in tokenize(references)])
        return self._prepared[key]
