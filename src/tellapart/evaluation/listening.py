"""What a retriever makes of captions, one an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tellapart.evaluation.measures import Measured
from tellapart.metrics.retrieval import hard_gallery, nearest_images, retrieval_metrics, retrieval_ranks
from tellapart.metrics.scores import clip_s
from tellapart.types import Listener

TEXTS_AT_ONCE = 256


@torch.no_grad()
def listener_measures(listener: Listener, name: str, captions: Mapping[str, str], *, hard: int = 0) -> Measured:
    """Retrieval in both directions among the captioned images, and CLIP-S, by one retriever.

    Recall is in percent, MRR a fraction; captions are texts to ``listener`` as they are (it adds its own prompt).

    Args:
        listener: knows the images by id.
        name: what its metrics are called: ``<name>_R@1`` (caption to image), ``<name>_i2t_R@1`` (image to caption), ...
        captions: image id -> caption; these images are the gallery.
        hard: also measure each caption among its image and the ``hard`` images that this retriever finds most like it,
            as ``<name>_hard<hard>_R@1``, with a column ``<name>_confused`` of those it does not tell apart; 0 does not.
    """
    images = listener.encode_ids(list(captions)).float().cpu().numpy()
    texts = _embed_distinct(listener, list(captions.values()))
    t2i, i2t = retrieval_ranks(texts, images)
    similarity = clip_s(np.einsum("nd,nd->n", texts.astype(np.float64), images.astype(np.float64)))
    metrics = {f"{name}_{key}": value for key, value in retrieval_metrics(t2i).items()}
    metrics[f"{name}_MedR"] = float(np.median(t2i))
    metrics |= {f"{name}_i2t_{key}": value for key, value in retrieval_metrics(i2t).items() if key != "MRR"}
    metrics[f"{name}_CLIPScore"] = float(similarity.mean())
    columns = {f"{name}_rank": t2i.tolist(), f"{name}_i2t_rank": i2t.tolist()}
    for k in (1, 5, 10):
        columns[f"{name}_R@{k}"] = (100.0 * (t2i <= k)).tolist()
        columns[f"{name}_i2t_R@{k}"] = (100.0 * (i2t <= k)).tolist()
    columns |= {f"{name}_MRR": (1.0 / t2i).tolist(), f"{name}_CLIPScore": similarity.tolist()}
    if hard:
        ranks, confused = hard_gallery(texts, images, nearest_images(images, hard))
        key, ids = f"{name}_hard{hard}_R@1", list(captions)
        columns |= {key: (100.0 * (ranks == 1)).tolist(), f"{name}_hard{hard}_rank": ranks.tolist()}
        columns[f"{name}_confused"] = [[ids[row] for row in rows] for rows in confused]
        metrics[key] = float(np.mean(columns[key]))
    return metrics, columns


def _embed_distinct(listener: Listener, captions: Sequence[str]) -> np.ndarray:
    """``[N, D]``; each distinct caption is embedded once, so equal captions have equal rows."""
    row = {text: i for i, text in enumerate(dict.fromkeys(captions))}
    distinct = list(row)
    parts = [
        listener.encode_texts(distinct[start : start + TEXTS_AT_ONCE]).float().cpu().numpy()
        for start in range(0, len(distinct), TEXTS_AT_ONCE)
    ]
    return np.concatenate(parts)[[row[text] for text in captions]]
