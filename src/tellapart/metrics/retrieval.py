"""Does a caption find its image? Ranks over a pool in which row i of the texts belongs to row i of the images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tellapart.nearest import nearest_rows

_SAME = 1e-9
"""Cosines this close count as equal: matrix products of equal rows may differ in their last bits."""


def ranks(similarity: np.ndarray) -> np.ndarray:
    """Rank of the diagonal in each row: ``1 + #{j != i: s_ij >= s_ii}``.

    Ties count against the caption, so that a constant score retrieves nothing; so does a score that is not a number.
    Transpose the matrix for the other direction.

    Args:
        similarity: ``[N, N]``, higher is closer.

    Returns:
        ``[N]`` int64, 1 is best.
    """
    own = np.diagonal(similarity)[:, None]
    not_lower = ~(similarity < own)
    np.fill_diagonal(not_lower, True)
    return not_lower.sum(axis=1)


def retrieval_ranks(texts: np.ndarray, images: np.ndarray, *, block: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of matching pairs in both directions, a block of texts at a time (the full matrix never exists).

    Args:
        texts: ``[N, D]``, unit norm, one caption per image.
        images: ``[N, D]``, unit norm, the image of each caption.
        block: texts compared at once; memory is ``block * N`` float64.

    Returns:
        ``(t2i, i2t)``, each ``[N]``: the rank of the image among all images given the caption, and of the caption among
        all captions given the image; ties are pessimistic as in ``ranks``.
    """
    texts, images = np.asarray(texts, np.float64), np.asarray(images, np.float64)
    own = np.einsum("nd,nd->n", texts, images)
    t2i, i2t = np.empty(len(texts), np.int64), np.zeros(len(texts), np.int64)
    for start in range(0, len(texts), block):
        rows = np.arange(start, min(start + block, len(texts)))
        similarity = texts[rows] @ images.T
        similarity[rows - start, rows] = np.inf  # a pair never ranks below itself, whatever its last bit
        t2i[rows] = (~(similarity < own[rows, None] - _SAME)).sum(axis=1)
        i2t += (~(similarity < own[None] - _SAME)).sum(axis=0)
    return t2i, i2t


def reference_ranks(
    texts: np.ndarray, owner: np.ndarray, images: np.ndarray, *, block: int = 512
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks where an image has several texts, as benchmarks of image-text retrieval count them (Karpathy & Fei-Fei 2015).

    Args:
        texts: ``[M, D]``, unit norm.
        owner: ``[M]`` row of ``images`` that each text is of; every image has at least one.
        images: ``[N, D]``, unit norm.
        block: texts compared at once; memory is ``block * N`` float64.

    Returns:
        ``t2i [M]``: the rank of each text's image among all images; ``i2t [N]``: of each image the rank of the best of its
        texts among the texts of others. Ties are pessimistic as in ``ranks``.
    """
    texts, images, owner = np.asarray(texts, np.float64), np.asarray(images, np.float64), np.asarray(owner)
    own = np.einsum("md,md->m", texts, images[owner])
    best = np.full(len(images), -np.inf)
    np.maximum.at(best, owner, own)
    t2i, i2t = np.empty(len(texts), np.int64), np.ones(len(images), np.int64)
    for start in range(0, len(texts), block):
        rows = np.arange(start, min(start + block, len(texts)))
        similarity = texts[rows] @ images.T
        similarity[rows - start, owner[rows]] = np.inf
        t2i[rows] = (~(similarity < own[rows, None] - _SAME)).sum(axis=1)
        similarity[rows - start, owner[rows]] = -np.inf
        i2t += (~(similarity < best[None] - _SAME)).sum(axis=0)
    return t2i, i2t


def recall_at_k(ranks: np.ndarray, k: int) -> float:
    """R@k: percent of ranks that are at most ``k``."""
    return 100.0 * float(np.mean(ranks <= k))


def mean_reciprocal_rank(ranks: np.ndarray) -> float:
    """MRR: mean of ``1 / rank``, a fraction."""
    return float(np.mean(1.0 / ranks))


def retrieval_metrics(ranks: np.ndarray, *, ks: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """``R@k`` (percent) for each k and ``MRR`` (fraction) of one direction's ranks."""
    return {f"R@{k}": recall_at_k(ranks, k) for k in ks} | {"MRR": mean_reciprocal_rank(ranks)}


def nearest_images(images: np.ndarray, k: int, *, block: int = 512) -> np.ndarray:
    """``[N, k]``: the k images most like each one, itself and its exact copies left out, most alike first.

    Images of equal similarity come in the order of their rows. Where fewer than k others exist, the row ends in -1.

    Args:
        images: ``[N, D]``, unit norm.
        k: neighbours of an image.
        block: images compared at once.
    """
    # Unit norms of float32 are off by more than copies may be, and half of the copies would stay in.
    images = np.array(images, np.float64)
    norms = np.linalg.norm(images, axis=1, keepdims=True)
    images /= np.where(norms > 0, norms, 1.0)
    rows, _ = nearest_rows(images, images, k, own=np.arange(len(images)), same_above=1 - _SAME, block=block)
    return rows


def hard_gallery(texts: np.ndarray, images: np.ndarray, neighbours: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
    """How often a caption identifies its image among those most like it.

    Args:
        texts: ``[N, D]``, unit norm, one caption per image.
        images: ``[N, D]``, unit norm.
        neighbours: ``[N, k]`` rows of ``images``, as ``nearest_images`` gives them; -1 is none.

    Returns:
        ``[N]`` ranks of the image among itself and its neighbours (ties are pessimistic), and for each caption the
        neighbours that it fits at least as well as its own image, best fit first: those it does not tell apart.
    """
    texts, images = np.asarray(texts, np.float64), np.asarray(images, np.float64)
    own = np.einsum("nd,nd->n", texts, images)
    result, confused = np.ones(len(texts), np.int64), []
    for row, others in enumerate(neighbours):
        others = others[others >= 0]
        fit = images[others] @ texts[row]
        wrong = ~(fit < own[row] - _SAME)
        result[row] += wrong.sum()
        confused.append(others[wrong][np.argsort(-fit[wrong], kind="stable")].tolist())
    return result, confused
