"""Mining the nearest other pictures of images: hard negatives for contrastive rewards (Chaffin et al., 2024, WTF-RL).

An image's own copies must not be among its negatives, or the reward asks a caption to tell a picture from itself. The
authors' code compares a global row with one local to its batch, and so excludes the image itself only in the first
batch; here pictures are told apart by content.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np

from tellapart.errors import UsageError
from tellapart.files import cache_dir
from tellapart.listeners.approximate import approximate_rows, require_faiss
from tellapart.listeners.cache import NamedPicture
from tellapart.listeners.contents import HashedImage, content_labels, hashed, together, told_pairs
from tellapart.listeners.distinct import Found, distinct_neighbours, united
from tellapart.listeners.neighbours import Neighbours
from tellapart.nearest import nearest_rows
from tellapart.progress import bar

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Engine", "ImageListener", "Neighbours", "mine"]

logger = logging.getLogger(__name__)

Engine = Literal["auto", "exact", "faiss"]

EXACT_UP_TO = 200_000
"""Images up to which ``auto`` searches exactly."""

SAME_ABOVE = 0.9999
"""Cosine from which two images are one picture to the listener: equal pixels in another file reach it, a JPEG of lower
quality does not."""

_VERSION = 1  # to be raised when the same images would get other neighbours


class ImageListener(Protocol):
    """What mining asks of a listener."""

    def fingerprint(self) -> str:
        """A hash of what determines its embeddings."""
        ...

    def cache_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Make embeddings available by id."""
        ...

    def encode_ids(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm."""
        ...


@dataclass(frozen=True)
class _Task:
    """What is to be found.

    Args:
        items: all images, those that can be neighbours first.
        labels: ``[P]`` the position of the first image of each one's content.
        told: pairs of images that are said to be one picture.
        gallery: how many can be neighbours.
        asked: positions of the images whose neighbours are wanted.
        k: neighbours of each.
        same_above: cosine from which images are one picture.
        engine: which of the two.
        recall: what FAISS is to reach.
    """

    items: list[HashedImage]
    labels: np.ndarray
    told: tuple[np.ndarray, np.ndarray]
    gallery: int
    asked: list[int]
    k: int
    same_above: float
    engine: str
    recall: float

    @property
    def ids(self) -> list[str]:
        """Of the images whose neighbours are wanted."""
        return [self.items[i].id for i in self.asked]

    def options(self) -> dict[str, Any]:
        """What decides the result beside images and listener."""
        options = {"k": self.k, "same_above": self.same_above, "engine": self.engine}
        return options | ({"least_recall": self.recall} if self.engine == "faiss" else {})

    def path(self, listener: ImageListener) -> Path:
        """Where in the cache the result belongs."""
        images = [(item.id, item.image.content) for item in self.items]
        described = [
            _VERSION,
            self.options(),
            images,
            united(self.labels, *self.told).tolist(),
            self.gallery,
            self.asked,
        ]
        digest = hashlib.sha256(listener.fingerprint().encode() + json.dumps(described).encode())
        return cache_dir() / "neighbours" / f"{digest.hexdigest()[:32]}.parquet"


def mine(
    listener: ImageListener,
    dataset: Iterable[NamedPicture],
    k: int = 5,
    *,
    gallery: Iterable[NamedPicture] | None = None,
    same: Iterable[Sequence[str]] = (),
    same_above: float = SAME_ABOVE,
    engine: Engine = "auto",
    recall: float = 0.95,
) -> Neighbours:
    """For each image the ``k`` other pictures whose embeddings are nearest (cosine), nearest first.

    Images are one picture if their content is equal, if ``same`` says so, or if their cosine is at least ``same_above``;
    chains of such images are one picture. A picture is never a neighbour of its own images, and never twice of another:
    it is there as its first image in the gallery's order. Equal similarities come in that order, too.

    What was found is kept in the cache folder, by the listener, ids and contents of the images, and the options.
    Afterwards the listener knows all images by id.

    Args:
        listener: whose embeddings are compared.
        dataset: images with ``id`` and ``image``.
        k: neighbours of each image.
        gallery: where neighbours come from; by default the data set itself.
        same: groups of ids that are known to show the same picture, such as
            :func:`~tellapart.data.duplicates.look_alikes` finds.
        same_above: cosine from which images are one picture; above 1 never.
        engine: exact products, FAISS, or by the number of images (exact up to 200,000). Where FAISS would have to look at
            an eighth of its lists or more, images are searched exactly.
        recall: share (0 to 1) of the true neighbours that FAISS has to find, by a sample of 500 images.

    Raises:
        UsageError: an option cannot be used, an image cannot be read, an id names two pictures, an embedding is not
            finite, or there are fewer than ``k`` other pictures.
    """
    _check(k, same_above, recall)
    asked = hashed(dataset)
    offered = asked if gallery is None else hashed(gallery)
    items, position = together(offered, asked)
    listener.cache_images(items)
    task = _Task(
        items,
        content_labels(items),
        told_pairs(position, same),
        len(offered),
        [position[item.id] for item in asked],
        k,
        same_above,
        _engine(engine, len(offered)),
        recall,
    )
    path = task.path(listener)
    known = _known(path, task)
    if known is not None:
        return known
    result = _search(listener, task)
    result.save(path)
    return result


def _check(k: int, same_above: float, recall: float) -> None:
    if k < 1:
        raise UsageError(f"k is {k}: ask for at least 1 neighbour.")
    if not same_above > 0:
        raise UsageError(f"same_above is {same_above}: give a cosine above 0, from which images are one picture.")
    if not 0 < recall <= 1:
        raise UsageError(f"recall is {recall}: give a share above 0 and at most 1.")


def _engine(engine: str, images: int) -> str:
    """The engine to use."""
    if engine not in get_args(Engine):
        raise UsageError(f"engine {engine!r} is none of {', '.join(get_args(Engine))}: choose one of them.")
    if engine == "faiss":
        require_faiss()
    if engine != "auto":
        return engine
    large = images > EXACT_UP_TO
    if large and find_spec("faiss") is None:
        logger.warning(
            "%d images are searched exactly, which takes time: pip install 'tellapart[faiss]' searches them faster.",
            images,
        )
    return "faiss" if large and find_spec("faiss") else "exact"


def _known(path: Path, task: _Task) -> Neighbours | None:
    """What was found before; None if nothing was, or if it is damaged."""
    if not path.is_file():
        return None
    try:
        found = Neighbours.load(path)
    except UsageError as error:
        logger.warning("%s The neighbours are searched again.", error)
        return None
    return found if found.ids == task.ids and found.k == task.k else None


def _search(listener: ImageListener, task: _Task) -> Neighbours:
    """Find them."""
    embeddings = listener.encode_ids([item.id for item in task.items]).float().cpu().numpy()
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        name = task.items[int(np.argmin(finite))].id
        raise UsageError(
            f"the embedding of image {name!r} is not finite: the listener's weights are broken, use another."
        )
    figures: dict[str, Any] = {}
    with bar("searching neighbours", len(task.items)) as running:

        def exact(queries: np.ndarray, gallery: np.ndarray, k: int, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return nearest_rows(queries, gallery, k, own=own, advance=running.advance)

        def faiss(queries: np.ndarray, gallery: np.ndarray, k: int, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = approximate_rows(queries, gallery, k, own, recall=task.recall, advance=running.advance)
            if found is None:
                logger.info("FAISS would have to look at most of the images: they are searched exactly.")
                return exact(queries, gallery, k, own)
            figures.update(found[2], engine="faiss")
            return found[:2]

        figures["engine"] = "exact"
        found = distinct_neighbours(
            embeddings,
            task.labels,
            task.told,
            task.gallery,
            task.k,
            same_above=task.same_above,
            search={"exact": exact, "faiss": faiss}[task.engine],
            again=exact,  # for the few images that had many copies nearest
        )
    return _result(task, found, figures)


def _result(task: _Task, found: Found, figures: dict[str, Any]) -> Neighbours:
    gallery = [item.id for item in task.items[: task.gallery]]

    def different(labels: np.ndarray) -> int:
        return len(np.unique(labels[: task.gallery]))

    pictures, rows = different(found.labels), found.rows[task.asked]
    fewest = int((rows >= 0).sum(axis=1).min())
    if not fewest:
        raise UsageError(f"all {len(gallery)} images are one picture to the listener: neighbours take different ones.")
    if fewest < task.k:
        raise UsageError(
            f"k is {task.k}, but the {len(gallery)} images are only {pictures} different pictures to the listener: ask for "
            f"at most {fewest}, or give more images."
        )
    contents, told = different(task.labels), different(united(task.labels, *task.told))
    counts = {
        "images": len(task.asked),
        "gallery": len(gallery),
        "pictures": pictures,
        "same_content": len(gallery) - contents,
        "told_same": contents - told,
        "same_embedding": told - pictures,
    }
    about = task.options() | figures | counts
    return Neighbours(task.ids, gallery, rows, found.similarities[task.asked], about=about)
