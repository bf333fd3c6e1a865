"""What a captioner's own listener, which is trained with it, makes of its captions and of people's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.evaluation.listening import read_images, read_texts
from tellapart.evaluation.measures import Measured
from tellapart.frames import Processor
from tellapart.metrics.retrieval import recall_at_k, reference_ranks, retrieval_ranks
from tellapart.types import Listener

KS = (1, 5, 10)
NAME = "own_listener"
_IMAGES_A_BATCH = 64


class OwnListenerScorer:
    """``own_listener_R@k``: the share of captions, in percent, whose image a captioner's own listener finds among the first k
    (Vered et al., ICCV 2019, section 6.4); and ``own_listener_human_R@k``, the same of people's captions (their Table 3).

    Nothing is remembered: the listener is asked again each time, with its weights as they are, images included where its
    image side learns. Two runs have two listeners, so these figures say how well a captioner and its listener understand
    each other, and do not compare captions by one measure.

    Args:
        listener: knows the images by id.
        dataset: the images.
        process: what turns pictures into the listener's tensors, if its image side learns and images must be embedded again.
        num_workers: processes that read images, where these are embedded again.
    """

    name = NAME

    def __init__(
        self,
        listener: Listener,
        dataset: CaptionDataset,
        *,
        process: Processor | None = None,
        num_workers: int = 0,
    ) -> None:
        self.listener, self.dataset, self.process, self.num_workers = listener, dataset, process, num_workers
        self.measured_by: dict[str, str] = {}

    @torch.no_grad()
    def __call__(self, captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Measured:
        """Metrics; columns ``own_listener_rank`` and ``own_listener_R@k``."""
        images = self._images(list(captions))
        ranks, _ = retrieval_ranks(read_texts(self.listener, list(captions.values())), images)
        columns = {f"{NAME}_R@{k}": (100.0 * (ranks <= k)).tolist() for k in KS}
        metrics = {key: float(np.mean(rows)) for key, rows in columns.items()}
        written = [[text.strip() for text in references.get(name, ()) if text.strip()] for name in captions]
        if written and all(written):
            texts = read_texts(self.listener, [text for own in written for text in own])
            human, _ = reference_ranks(texts, np.repeat(np.arange(len(written)), [len(own) for own in written]), images)
            metrics |= {f"{NAME}_human_R@{k}": recall_at_k(human, k) for k in KS}
        return metrics, columns | {f"{NAME}_rank": ranks.tolist()}

    def describe(self, captions: Sequence[str]) -> dict[str, Any]:
        """Which model, as it is now."""
        described = getattr(self.listener, "describe", None)
        return described() if callable(described) else {"weights": type(self.listener).__name__}

    def _images(self, ids: Sequence[str]) -> np.ndarray:
        """``[N, D]``: from the listener's memory unless its image side learns."""
        if self.process is None:
            return read_images(self.listener, ids)
        loader: torch.utils.data.DataLoader = torch.utils.data.DataLoader(
            [self.dataset[self.dataset.position[name]] for name in ids],  # type: ignore[arg-type]  # a sequence serves
            batch_size=_IMAGES_A_BATCH,
            collate_fn=Collate({self.listener.name: self.process}),
            num_workers=self.num_workers,
        )
        parts = [self.listener.encode_images(batch) for batch in loader]
        return torch.cat(parts).float().cpu().numpy()
