"""Rewards from agreement with the human captions of an image."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tellapart.errors import UsageError, count_of
from tellapart.metrics.cider import CiderDScorer, PreparedReferences
from tellapart.metrics.frequencies import FEW_IMAGES, DocumentFrequencies
from tellapart.metrics.numbering import WordNumbers
from tellapart.ranges import PositiveInt, in_range
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
        prepared_images: keep the vectors of this many images, about 1 kB each.

    Raises:
        ValueError: ``prepared_images`` is below 1.
        UsageError: the document frequencies are of a single image, of which every n-gram weighs nothing.
    """

    @in_range
    def __init__(self, document_frequencies: DocumentFrequencies, *, prepared_images: PositiveInt = 100_000) -> None:
        images = document_frequencies.images
        if images < 2:
            raise UsageError(
                f"CIDEr-D takes its document frequencies from {count_of(images, 'image')}, so that every reward is 0: "
                "give more training images with references."
            )
        if images < FEW_IMAGES:
            logger.warning(
                "CIDEr-D takes its document frequencies from only %d images: rewards will be coarse.", images
            )
        self.document_frequencies, self.prepared_images = document_frequencies, prepared_images
        self._scorer = CiderDScorer(document_frequencies)
        self._numbers = WordNumbers(self._scorer.vocabulary)
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
        if not len(rollout):
            return np.zeros(0)
        image = rollout.image.cpu().numpy()
        rows = np.flatnonzero(np.bincount(image, minlength=len(rollout.batch)))
        if len(rows) < len(rollout.batch):
            image = np.searchsorted(rows, image)
        references = PreparedReferences.join(self._references(rollout.batch, rows.tolist()))
        end = self.document_frequencies.end
        closing = [end if finished else "" for finished in rollout.finished.tolist()] if end else ()
        return self._scorer.score_numbered(self._numbers.number(rollout.texts, closing=closing), image, references)

    def _references(self, batch: Batch, rows: Sequence[int]) -> list[PreparedReferences]:
        """The prepared references of some images; those not seen before are prepared together and kept."""
        keys = [tuple(batch.references[row]) for row in rows]
        found = [self._prepared.get(key) for key in keys]
        if None in found:
            new = {key: row for key, prepared, row in zip(keys, found, rows, strict=True) if prepared is None}
            for key, row in new.items():
                if not any(reference.strip() for reference in key):
                    raise UsageError(
                        f"the CIDEr-D reward needs references, but image {batch.ids[row]!r} has none: "
                        "leave such images out of training, or choose a reward that reads the image."
                    )
            prepared = dict(zip(new, self._prepare([*new]), strict=True))
            found = [prepared.get(key, one) for key, one in zip(keys, found, strict=True)]
            self._keep(prepared)
        return [one for one in found if one is not None]

    def _prepare(self, references: Sequence[Sequence[str]]) -> list[PreparedReferences]:
        texts, end = [text for captions in references for text in captions], self.document_frequencies.end
        words = self._numbers.number(texts, closing=[end] * len(texts) if end else (), add=True)
        return self._scorer.prepare_numbered(words, np.array([len(captions) for captions in references])).images()

    def _keep(self, prepared: dict[tuple[str, ...], PreparedReferences]) -> None:
        self._prepared |= prepared
        while len(self._prepared) > self.prepared_images:
            del self._prepared[next(iter(self._prepared))]  # the oldest: an epoch visits images in turn
