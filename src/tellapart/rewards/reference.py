"""Rewards from agreement with the human captions of an image."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.metrics.cider import CiderDScorer, PreparedReferences
from tellapart.metrics.frequencies import FEW_IMAGES, DocumentFrequencies
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.types import Batch, Rollout

__all__ = ["CiderD", "DocumentFrequencies"]

logger = logging.getLogger(__name__)


class CiderD:
    """CIDEr-D with the document frequencies of the *training* references, on its own scale of 0 to 10.

    The reward of SCST (Rennie et al. 2017). Captions and references are cut into words exactly as for the metric. The
    end of a caption is a token of its own, which a caption cut at the longest length lacks, so that leaving off the
    end costs reward. The vectors of an image's references are prepared when it is first seen; the captions of a batch
    are scored together.

    Args:
        document_frequencies: ``DocumentFrequencies.from_references(train.references)``.
        prepared_images: keep the vectors of this many images, some 3 kB each.

    Raises:
        UsageError: the document frequencies are of a single image, of which every n-gram weighs nothing.
    """

    def __init__(self, document_frequencies: DocumentFrequencies, *, prepared_images: int = 100_000) -> None:
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
        return torch.from_numpy(self.score(rollout)).to(rollout.image.device, torch.float32)

    def score(self, rollout: Rollout) -> np.ndarray:
        """``[N]`` float64, the same before it is rounded.

        Raises:
            UsageError: an image has no references.
        """
        rows, image = np.unique(rollout.image.cpu().numpy(), return_inverse=True)
        if not len(rows):
            return np.zeros(0)
        references = PreparedReferences.join(self._references(rollout.batch, rows.tolist()))
        ended = zip(ptb_tokenize(rollout.texts, alone=True), rollout.finished.tolist(), strict=True)
        captions = [text.split() + self._closing if finished else text.split() for text, finished in ended]
        return self._scorer.score(captions, image, references)

    def _references(self, batch: Batch, rows: Sequence[int]) -> list[PreparedReferences]:
        """The prepared references of some images; those not seen before are prepared together and kept."""
        keys = [tuple(batch.references[row]) for row in rows]
        found = {key: self._prepared.get(key) for key in keys}
        new = [key for key, prepared in found.items() if prepared is None]
        for key, row in zip(keys, rows, strict=True):
            if found[key] is None and not any(reference.strip() for reference in key):
                raise UsageError(
                    f"the CIDEr-D reward needs references, but image {batch.ids[row]!r} has none: "
                    "leave such images out of training, or choose a reward that reads the image."
                )
        if new:
            words = [[text.split() + self._closing for text in ptb_tokenize(key, alone=True)] for key in new]
            found |= dict(zip(new, self._scorer.prepare(words).images(), strict=True))
            self._keep({key: prepared for key in new if (prepared := found[key]) is not None})
        return [prepared for key in keys if (prepared := found[key]) is not None]

    def _keep(self, prepared: dict[tuple[str, ...], PreparedReferences]) -> None:
        self._prepared |= prepared
        while len(self._prepared) > self.prepared_images:
            del self._prepared[next(iter(self._prepared))]  # the oldest: an epoch visits images in turn
