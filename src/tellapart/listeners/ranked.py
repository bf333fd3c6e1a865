"""Images of a second set, ranked by how well they go with the captions of each training image (Liu et al., ECCV 2018)."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tellapart.draws import uniforms
from tellapart.errors import UsageError
from tellapart.files import beside, cache_dir
from tellapart.progress import bar

logger = logging.getLogger(__name__)

PAPER_RANKS, PAPER_IMAGES = (100, 1000), 123_287
"""Ranks that SR-PL draws from, among COCO's unlabelled images."""

_VERSION = 2  # to be raised when the same images would get other ranks
_BLOCK = 256  # training images whose similarities are held at once


class Retriever(Protocol):
    """The interface that ranking needs of a listener."""

    def fingerprint(self) -> str:
        """A hash of what determines its embeddings."""
        ...

    def encode_ids(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, of images that were made known."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm."""
        ...


class RankedImages:
    """For each training image, the images of a second set within two ranks of similarity to its captions.

    Args:
        ids: N training image ids.
        gallery: ids of the second set.
        rows: ``[N, W]`` positions in ``gallery``, most similar first.
    """

    def __init__(self, ids: Sequence[str], gallery: Sequence[str], rows: np.ndarray) -> None:
        self.rows, self._gallery = rows, list(gallery)
        self._position = {name: i for i, name in enumerate(ids)}

    def draw(self, ids: Sequence[str], seed: int) -> list[str]:
        """One image of the second set for each of ``ids``, which depends on the id and the seed only.

        Raises:
            UsageError: an id is not known.
        """
        found = []
        for name, share in zip(ids, uniforms(ids, 1, seed)[:, 0].tolist(), strict=True):
            if name not in self._position:
                raise UsageError(f"image {name!r} was not ranked: rank the images of the data set that holds it.")
            row = self.rows[self._position[name]]
            found.append(self._gallery[row[int(share * len(row))]])
        return found


def scaled_ranks(images: int) -> tuple[int, int]:
    """The paper's ranks for a smaller or larger set, by its share of ``PAPER_IMAGES``; the first is 1 at least."""
    first, last = (round(rank * images / PAPER_IMAGES) for rank in PAPER_RANKS)
    return max(first, 1), min(max(last, first + 1, 2), images)


def rank_images(
    listener: Retriever,
    references: Mapping[str, Sequence[str]],
    gallery: Sequence[str],
    ranks: tuple[int, int],
) -> RankedImages:
    """Rank the images of a second set by the mean of their cosines with the captions of each training image.

    The result is kept in the cache, by the listener's weights, the ids, the captions, the embeddings of the second set and the
    ranks.

    Args:
        listener: embeds captions; knows the images of ``gallery``.
        references: training image id -> its captions, at least one.
        gallery: ids of the second set.
        ranks: first and last rank that is kept, 1 for the most similar.

    Raises:
        UsageError: the ranks are not two ascending numbers, or exceed the number of images; or a training image has no caption.

    Example::

        listener.cache_images(unlabelled)
        ranked = rank_images(listener, dataset.references, unlabelled.ids, scaled_ranks(len(unlabelled)))
        ranked.draw(["42", "7"], seed=0)  # one unlabelled image for each
    """
    first, last = ranks
    if not 1 <= first <= last <= len(gallery):
        raise UsageError(
            f"unlabelled.ranks is [{first}, {last}], but there are {len(gallery)} unlabelled images: give two rising ranks from "
            "1 to their number."
        )
    images = listener.encode_ids(gallery).float()
    # Other pictures may have the same ids.
    seen = hashlib.sha256(images.cpu().numpy().tobytes()).hexdigest()
    described = json.dumps([_VERSION, listener.fingerprint(), list(references.items()), list(gallery), seen, ranks])
    path = cache_dir() / "ranked_images" / f"{hashlib.sha256(described.encode()).hexdigest()[:32]}.npy"
    rows = _known(path, (len(references), last - first + 1))
    if rows is None:
        rows = _ranked(listener, references, images, ranks)
        with beside(path) as temporary, temporary.open("wb") as file:
            np.save(file, rows)
    return RankedImages(list(references), gallery, rows)


def _known(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The cached result; None if nothing was, or if it is damaged."""
    if not path.is_file():
        return None
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        logger.warning("%s is damaged: the images are ranked again.", path)
        return None
    return rows if rows.shape == shape else None


@torch.no_grad()
def _ranked(
    listener: Retriever, references: Mapping[str, Sequence[str]], images: Tensor, ranks: tuple[int, int]
) -> np.ndarray:
    captions, blocks, ids = list(references.values()), [], list(references)
    with bar("ranking unlabelled images", len(captions)) as running:
        for start in range(0, len(captions), _BLOCK):
            some = captions[start : start + _BLOCK]
            for name, texts in zip(ids[start : start + _BLOCK], some, strict=True):
                if not texts:
                    raise UsageError(f"image {name!r} has no caption to rank unlabelled images by: leave it out.")
            embedded = listener.encode_texts([text for texts in some for text in texts]).float()
            means = torch.stack([part.mean(dim=0) for part in embedded.split([len(texts) for texts in some])])
            best = (means @ images.T).topk(ranks[1], dim=1).indices[:, ranks[0] - 1 :]
            blocks.append(best.cpu().numpy().astype(np.int32))
            running.advance(len(some))
    return np.concatenate(blocks)
