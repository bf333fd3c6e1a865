"""Measures of captions by a dual encoder, one caption per image: retrieval, and similarity to the image and to references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.evaluation.measures import Measured
from tellapart.metrics.retrieval import hard_gallery, nearest_images, retrieval_metrics, retrieval_ranks
from tellapart.metrics.scores import CLIP_WEIGHT, clip_s, refclip_s
from tellapart.sentences import split_sentences
from tellapart.types import Listener

TEXTS_AT_ONCE = 256


class Names(NamedTuple):
    """What a similarity is called: on its own, with references, as the mean over a caption's sentences."""

    score: str
    reference: str
    sentences: str


PAC_NAMES = Names("PAC-S", "RefPAC-S", "PAC-S_sentences")


def clip_names(listener: str) -> Names:
    """Those of CLIPScore by a listener of that name."""
    return Names(f"{listener}_CLIPScore", f"{listener}_RefCLIPScore", f"{listener}_CLIPScore_sentences")


@torch.no_grad()
def listener_measures(
    listener: Listener,
    name: str,
    captions: Mapping[str, str],
    *,
    hard: int = 0,
    references: Mapping[str, Sequence[str]] | None = None,
    reader: Listener | None = None,
) -> Measured:
    """Retrieval in both directions among the captioned images, and CLIP-S, by one retriever.

    Recall is in percent, MRR a fraction; captions are texts to ``listener`` as they are (it adds its own prompt).

    Args:
        listener: knows the images by id.
        name: what its metrics are called: ``<name>_R@1`` (caption to image), ``<name>_i2t_R@1`` (image to caption), ...
        captions: image id -> caption; these images are the gallery.
        hard: also measure each caption among its image and the ``hard`` images that this retriever finds most like it,
            as ``<name>_hard<hard>_R@1``, with a column ``<name>_confused`` of those it does not tell apart; 0 does not.
        references: image id -> human captions, for RefCLIP-S; it is left out unless all images have some.
        reader: embeds references in place of ``listener``: the same model, which remembers them.
    """
    images = read_images(listener, list(captions))
    texts = read_texts(listener, list(captions.values()))
    t2i, i2t = retrieval_ranks(texts, images)
    metrics = {f"{name}_{key}": value for key, value in retrieval_metrics(t2i).items()}
    metrics[f"{name}_MedR"] = float(np.median(t2i))
    metrics |= {f"{name}_i2t_{key}": value for key, value in retrieval_metrics(i2t).items() if key != "MRR"}
    columns = {f"{name}_rank": t2i.tolist(), f"{name}_i2t_rank": i2t.tolist()}
    for k in (1, 5, 10):
        columns[f"{name}_R@{k}"] = (100.0 * (t2i <= k)).tolist()
        columns[f"{name}_i2t_R@{k}"] = (100.0 * (i2t <= k)).tolist()
    columns[f"{name}_MRR"] = (1.0 / t2i).tolist()
    found = similarity_measures(
        listener, captions, references or {}, (images, texts), names=clip_names(name), reader=reader
    )
    metrics, columns = metrics | found[0], columns | found[1]
    if hard:
        ranks, confused = hard_gallery(texts, images, nearest_images(images, hard))
        key, ids = f"{name}_hard{hard}_R@1", list(captions)
        columns |= {key: (100.0 * (ranks == 1)).tolist(), f"{name}_hard{hard}_rank": ranks.tolist()}
        columns[f"{name}_confused"] = [[ids[row] for row in rows] for rows in confused]
        metrics[key] = float(np.mean(columns[key]))
    return metrics, columns


@torch.no_grad()
def similarity_measures(
    listener: Listener,
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    embedded: tuple[np.ndarray, np.ndarray],
    *,
    names: Names,
    weight: float = CLIP_WEIGHT,
    reader: Listener | None = None,
    by_sentence: bool = True,
) -> Measured:
    """CLIP-S and RefCLIP-S (Hessel et al. 2021, sections 3 and 3.1), or PAC-S and RefPAC-S with ``weight`` 2; and CLIP-S
    averaged over a caption's sentences, which a text encoder of 77 tokens can read where it cannot read the whole.

    Args:
        listener: embeds sentences.
        captions: image id -> caption.
        references: image id -> human captions; unless every image has some, the score with references is left out.
        embedded: ``[N, D]`` images and ``[N, D]`` captions, in the captions' order.
        names: of the metrics and columns.
        weight: w.
        reader: embeds references in place of ``listener``.
        by_sentence: also average over sentences.
    """
    images, texts = (part.astype(np.float64) for part in embedded)
    cosines = np.einsum("nd,nd->n", texts, images)
    scores = {names.score: clip_s(cosines, weight=weight)}
    targets = [list(references.get(image_id, ())) for image_id in captions]
    if captions and all(targets):
        flat = read_texts(reader or listener, [text for own in targets for text in own])
        owner = np.repeat(np.arange(len(targets)), [len(own) for own in targets])
        every = _cosines(flat, texts, owner)
        rows = np.split(every, np.flatnonzero(np.diff(owner)) + 1)
        scores[names.reference] = refclip_s(cosines, rows, weight=weight)
    if by_sentence:
        scores[names.sentences] = _by_sentence(listener, list(captions.values()), scores[names.score], images, weight)
    columns = {key: rows.tolist() for key, rows in scores.items()}
    return {key: float(np.mean(rows)) for key, rows in columns.items()}, columns


def _by_sentence(
    listener: Listener, captions: Sequence[str], whole: np.ndarray, images: np.ndarray, weight: float
) -> np.ndarray:
    """``[N]``: the mean score of a caption's sentences; the whole caption's where it is one sentence."""
    found, sentences = whole.copy(), [split_sentences(text) for text in captions]
    long = [row for row, own in enumerate(sentences) if len(own) > 1]
    if long:
        texts = read_texts(listener, [text for row in long for text in sentences[row]])
        counts = np.array([len(sentences[row]) for row in long])
        scores = clip_s(_cosines(texts, images, np.repeat(long, counts)), weight=weight)
        found[long] = [own.mean() for own in np.split(scores, np.cumsum(counts)[:-1])]
    return found


def _cosines(texts: np.ndarray, others: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """``[M]`` float64 products of M texts and their rows of ``others``, in blocks: a text of float32 is not copied whole."""
    found = np.empty(len(texts))
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        here = slice(start, start + TEXTS_AT_ONCE)
        found[here] = np.einsum("md,md->m", others[owner[here]], texts[here].astype(np.float64))
    return found


def read_images(listener: Listener, ids: Sequence[str]) -> np.ndarray:
    """``[N, D]``, at least float32.

    Raises:
        UsageError: some are not numbers.
    """
    return _finite(listener, _as_array(listener.encode_ids(ids)), "images")


def read_texts(listener: Listener, texts: Sequence[str]) -> np.ndarray:
    """``[N, D]``, at least float32; each distinct text is embedded once, so equal texts have equal rows.

    Raises:
        UsageError: some are not numbers.
    """
    row = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    distinct = list(row)
    parts = [
        _as_array(listener.encode_texts(distinct[start : start + TEXTS_AT_ONCE]))
        for start in range(0, len(distinct), TEXTS_AT_ONCE)
    ]
    return _finite(listener, np.concatenate(parts), "texts")[[row[text] for text in texts]]


def _finite(listener: Listener, embeddings: np.ndarray, what: str) -> np.ndarray:
    """Raise where a mean would only say that something was no number."""
    if not np.isfinite(embeddings).all():
        raise UsageError(
            f"the listener {listener.name!r} gives {what} embeddings that are not numbers: its weights are damaged or its "
            "precision too low; fetch it again, or load it in float32."
        )
    return embeddings


def _as_array(embeddings: Tensor) -> np.ndarray:
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)).cpu().numpy()
