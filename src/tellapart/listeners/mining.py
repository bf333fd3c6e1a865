"""Mining the nearest other pictures of images: hard negatives for contrastive rewards (Chaffin et al., 2024, WTF-RL).

An image's own copies must not be among its negatives, or the reward asks a caption to tell a picture from itself. The
authors' code compares a global row with one local to its batch, and so excludes the image itself only in the first
batch; here pictures are compared by content.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np

from tellapart.errors import UsageError
from tellapart.files import cache_dir
from tellapart.frames import Clip, Picture, is_clip
from tellapart.listeners.approximate import approximate_rows, require_faiss
from tellapart.listeners.cache import NamedPicture
from tellapart.listeners.neighbours import Neighbours
from tellapart.nearest import MARGIN, nearest_rows
from tellapart.progress import bar, track

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


# Images whose content was hashed, and which of them show one picture as far as that tells.


@dataclass(frozen=True)
class Hashed:
    """A picture whose content was hashed already."""

    picture: Picture
    content: str

    def open(self) -> Image.Image:
        """The image in RGB."""
        return self.picture.open()

    def fingerprint(self) -> str:
        """The hash."""
        return self.content


@dataclass(frozen=True)
class HashedClip(Hashed):
    """The same of a clip."""

    picture: Clip

    def frames(self, num_frames: int) -> list[Image.Image]:
        """Frames of the clip."""
        return self.picture.frames(num_frames)


def _hashed(picture: Picture) -> Hashed:
    content = picture.fingerprint()
    return HashedClip(picture, content) if is_clip(picture) else Hashed(picture, content)


@dataclass(frozen=True)
class HashedImage:
    """An image with an id, which is not read again for its content."""

    id: str
    image: Hashed


def hashed(images: Iterable[NamedPicture]) -> list[HashedImage]:
    """The images with the hash of their content, which takes reading them all."""
    examples = list(images)
    return [HashedImage(e.id, _hashed(e.image)) for e in track(examples, "hashing images")]


def together(offered: list[HashedImage], asked: list[HashedImage]) -> tuple[list[HashedImage], dict[str, int]]:
    """All images once, those offered first, and the position of each id."""
    items = {item.id: item for item in offered}
    for item in asked:
        if items.setdefault(item.id, item).image.content != item.image.content:
            raise UsageError(f"image id {item.id!r} names two different pictures: give the data sets distinct ids.")
    return list(items.values()), {name: i for i, name in enumerate(items)}


def content_labels(items: list[HashedImage]) -> np.ndarray:
    """``[P]``: the position of the first image of the same content."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(item.image.content, i) for i, item in enumerate(items)], np.int64)


def told_pairs(position: Mapping[str, int], same: Iterable[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """``[M]`` and ``[M]``: positions of images that groups of ids say are the same; ids of no image are left out."""
    told = [[position[name] for name in group if name in position] for group in same]
    pairs = [(group[0], other) for group in told for other in group[1:]]
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    return left, right


# Neighbours that are different pictures: which images count as one, and the search that keeps them apart.
#
# A picture is a group of images; its label is the position of its first image. Pictures grow while neighbours are searched:
# two images with (nearly) equal embeddings are found there, as each other's nearest.

Search = Callable[[np.ndarray, np.ndarray, int, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""``(queries [Q, D], gallery [G, D], k, own [Q]) -> ([Q, k] rows, [Q, k] products)``, as ``nearest_rows`` does."""


class Found(NamedTuple):
    """The result of mining.

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
    everyone, width = np.arange(len(embeddings)), min(k + MARGIN, gallery)
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
        # of exact search a list that is not full, or as long as the gallery, holds all there are
        whole = (rows[:, -1] < 0) | (width >= len(kept)) if search is again else np.zeros(len(rows), bool)
        pending = np.flatnonzero((fit.sum(axis=1) < k) & ~whole)
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
    """The interface that mining needs of a listener."""

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
    """The mining task.

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
        """The settings that decide the result besides images and listener."""
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
    fewer: bool = False,
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
            ``look_alikes`` finds.
        same_above: cosine from which images are one picture; above 1 never.
        engine: exact products, FAISS, or by the number of images (exact up to 200,000). Where FAISS would have to look at
            more than an eighth of its lists, images are searched exactly.
        recall: share (0 to 1) of the true neighbours that FAISS has to find, by a sample of 500 images.
        fewer: where there are fewer than ``k`` other pictures, take all of them.

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
        len({item.id for item in offered}),
        [position[item.id] for item in asked],
        k,
        same_above,
        _engine(engine, len(offered)),
        recall,
    )
    path = task.path(listener)
    known = _known(path, task, fewer)
    if known is not None:
        return known
    result = _search(listener, task, fewer)
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


def _known(path: Path, task: _Task, fewer: bool) -> Neighbours | None:
    """The cached result; None if nothing was, or if it is damaged."""
    if not path.is_file():
        return None
    try:
        found = Neighbours.load(path)
    except UsageError as error:
        logger.warning("%s The neighbours are searched again.", error)
        return None
    return found if found.ids == task.ids and (found.k == task.k or (fewer and found.k < task.k)) else None


def _search(listener: ImageListener, task: _Task, fewer: bool) -> Neighbours:
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
    return _result(task, found, figures, fewer)


def _result(task: _Task, found: Found, figures: dict[str, Any], fewer: bool) -> Neighbours:
    gallery = [item.id for item in task.items[: task.gallery]]

    def different(labels: np.ndarray) -> int:
        return len(np.unique(labels[: task.gallery]))

    pictures, rows = different(found.labels), found.rows[task.asked]
    fewest = int((rows >= 0).sum(axis=1).min())
    if not fewest:
        raise UsageError(f"all {len(gallery)} images are one picture to the listener: neighbours take different ones.")
    if fewest < task.k and not fewer:
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
    k = min(fewest, task.k)  # every image has as many others
    return Neighbours(task.ids, gallery, rows[:, :k], found.similarities[task.asked][:, :k], about=about)
