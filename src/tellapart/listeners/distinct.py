"""Neighbours that are different pictures: which images count as one, and the search that keeps them apart.

A picture is a group of images; its label is the position of its first image. Pictures grow while neighbours are searched:
two images that a listener cannot tell apart are found there, as each other's nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tellapart.nearest import MARGIN

Search = Callable[[np.ndarray, np.ndarray, int, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""``(queries [Q, D], gallery [G, D], k, own [Q]) -> ([Q, k] rows, [Q, k] products)``, as ``nearest_rows`` does."""


class Found(NamedTuple):
    """What was found.

    Args:
        rows: ``[P, k]`` images near each image, nearest first; -1 where there were too few.
        similarities: ``[P, k]`` their cosines.
        labels: ``[P]`` the picture of each image.
    """

    rows: np.ndarray
    similarities: np.ndarray
    labels: np.ndarray


def distinct_neighbours(
    embeddings: np.ndarray,
    labels: np.ndarray,
    told: tuple[np.ndarray, np.ndarray],
    gallery: int,
    k: int,
    *,
    same_above: float,
    search: Search,
    again: Search,
) -> Found:
    """The ``k`` nearest other pictures of each image, every picture once, as its first image.

    Args:
        embeddings: ``[P, D]``, unit norm.
        labels: ``[P]`` the position of the first image of the same content, which has the same embedding.
        told: pairs of images that are known to be one picture, though their embeddings may differ: ``[M]`` and ``[M]``.
        gallery: how many images can be neighbours: the first of ``embeddings``.
        k: neighbours of each.
        same_above: images of at least this cosine are one picture, and so are chains of them.
        search: of the first round.
        again: of the rounds after pictures were united, in which few images are left.
    """
    everyone, width = np.arange(len(embeddings)), k + MARGIN
    rows, cosines = np.full((len(everyone), width), -1, np.int64), np.full((len(everyone), width), -np.inf)
    pending = everyone
    while len(pending):
        kept = np.flatnonzero(labels[:gallery] == everyone[:gallery])
        found, cosines[pending] = search(
            _taken(embeddings, pending), _taken(embeddings, kept), width, _own(labels[pending], kept)
        )
        rows[pending] = np.where(found < 0, -1, kept[found])
        # all images look for others, so that whatever is one picture with another is among what either has found
        image, place = np.nonzero(cosines[pending] >= same_above)
        alike = pending[image], rows[pending][image, place]
        labels = united(united(labels, *told), *alike)
        fit = (rows >= 0) & (labels == everyone)[rows] & (labels[rows] != labels[:, None])
        # a list that was not full held all there was
        pending = np.flatnonzero((fit.sum(axis=1) < k) & (rows[:, -1] >= 0))
        search = again
    order = np.argsort(~fit, axis=1, kind="stable")[:, :k]
    fit, rows, cosines = (np.take_along_axis(part, order, axis=1) for part in (fit, rows, cosines))
    return Found(np.where(fit, rows, -1), np.where(fit, cosines, -np.inf), labels)


def _taken(embeddings: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The rows, without a copy of them where they are all."""
    everything = len(rows) == len(embeddings) and bool((rows == np.arange(len(rows))).all())
    return embeddings if everything else embeddings[rows]


def _own(labels: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Where in ``kept`` each label is; -1 where it is not."""
    place = np.minimum(np.searchsorted(kept, labels), len(kept) - 1)
    return np.where(kept[place] == labels, place, -1)


def united(labels: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The labels after every ``left`` became one picture with its ``right``.

    Args:
        labels: ``[P]`` the position of the first image of each image's picture.
        left: ``[M]`` images.
        right: ``[M]`` the image that each of them is one with.
    """
    roots = labels.tolist()

    def root(i: int) -> int:
        while roots[i] != i:
            roots[i] = roots[roots[i]]
            i = roots[i]
        return i

    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        a, b = root(a), root(b)
        roots[max(a, b)] = min(a, b)
    return np.array([root(i) for i in range(len(roots))], np.int64)
