"""Retrieval by a late-interaction listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tellapart.evaluation.measures import Measured
from tellapart.evaluation.scorers import References, in_words
from tellapart.listeners.late import LateListener
from tellapart.metrics.retrieval import nearest_images, ranks, retrieval_metrics

TRUE_ABOVE = float(np.log(0.5))


class LateScorer:
    """Retrieval in both directions, and the share of captions that the listener takes to be true.

    Metrics, in percent unless said: ``<key>_R@1``, ``@5``, ``@10``, ``<key>_MRR`` (fraction) and ``<key>_MedR`` (rank) of the
    image given the caption, ``<key>_i2t_R@k`` of the caption given the image, ``<key>_true`` captions with a probability of being
    true above one half. Columns: the same per caption, ``<key>_rank``, ``<key>_i2t_rank``, and ``<key>_logprob`` in nats.

    Args:
        listener: has the images cached. Its weights must not change.
        key: what its metrics are called, such as ``judge``.
        hard: N, to also retrieve among each image's N nearest ones, as ``<key>_hard<N>_R@1``, with columns ``<key>_hard<N>_rank``
            and ``<key>_confused``, the images that a caption does not tell from its own; 0 does not.
    """

    def __init__(self, listener: LateListener, key: str, *, hard: int = 0) -> None:
        self.name, self.listener, self._key, self._hard = f"{key}_R@1", listener, key, hard
        self._described = listener.describe()
        self.measured_by = {self.name: in_words(self._described)}

    @property
    def weights(self) -> str:
        """12 digits of the listener's fingerprint."""
        return str(self._described["weights"])

    def __call__(self, captions: Mapping[str, str], references: References) -> Measured:
        """See the class."""
        ids, key = list(captions), self._key
        matrix = self.listener.logprobs(list(captions.values()), ids).double().numpy()
        t2i, i2t = ranks(matrix), ranks(matrix.T)
        own = matrix.diagonal()
        columns: dict[str, list[Any]] = {f"{key}_rank": t2i.tolist(), f"{key}_i2t_rank": i2t.tolist()}
        columns |= {f"{key}_logprob": own.tolist(), f"{key}_true": (100.0 * (own > TRUE_ABOVE)).tolist()}
        metrics = {f"{key}_{name}": value for name, value in retrieval_metrics(t2i).items()}
        metrics |= {f"{key}_i2t_{name}": value for name, value in retrieval_metrics(i2t).items() if name != "MRR"}
        metrics |= {f"{key}_MedR": float(np.median(t2i)), f"{key}_true": float(np.mean(columns[f"{key}_true"]))}
        for k in (1, 5, 10):
            columns[f"{key}_R@{k}"] = (100.0 * (t2i <= k)).tolist()
            columns[f"{key}_i2t_R@{k}"] = (100.0 * (i2t <= k)).tolist()
        columns[f"{key}_MRR"] = (1.0 / t2i).tolist()
        if self._hard:
            name = f"{key}_hard{self._hard}_R@1"
            confused = self._confused(matrix, ids)
            columns[name] = [100.0 * (not others) for others in confused]
            columns[f"{key}_hard{self._hard}_rank"] = [1 + len(others) for others in confused]
            columns[f"{key}_confused"] = confused
            metrics[name] = float(np.mean(columns[name]))
        return metrics, columns

    def _confused(self, matrix: np.ndarray, ids: Sequence[str]) -> list[list[str]]:
        """Of each image's nearest ones those that its caption fits at least as well, best fit first."""
        found = []
        for row, near in enumerate(nearest_images(self.listener.encode_ids(ids).cpu().numpy(), self._hard)):
            others = near[near >= 0]
            wrong = others[~(matrix[row, others] < matrix[row, row])]
            found.append([ids[place] for place in wrong[np.argsort(-matrix[row, wrong], kind="stable")]])
        return found

    def describe(self, captions: Sequence[str]) -> dict[str, Any]:
        """Which model, and ``truncated``: the share of ``captions`` (percent) that it had to cut."""
        cut = sum(self.listener.too_long(captions)) / max(len(captions), 1)
        return self._described | {"truncated": 100.0 * cut}
