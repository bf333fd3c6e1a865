"""Features of a collection, computed once and kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tellapart.captioners.vision import VisionFeatures
from tellapart.captioning.read import Reader, read_ahead
from tellapart.captioning.records import Item
from tellapart.data.features.store import ABOUT, About, FeatureStore, FeatureWriter, clear_features
from tellapart.errors import UsageError
from tellapart.locks import NAME as LOCK
from tellapart.locks import Lock
from tellapart.progress import bar
from tellapart.types import Batch

logger = logging.getLogger(__name__)


class _Reading:
    """Reads images that are not in the store yet."""

    def __init__(self, vision: VisionFeatures, store: FeatureStore) -> None:
        self.store = store
        self.reader = Reader({vision.name: vision.process})

    def __call__(self, items: Sequence[Item]) -> tuple[int, list[tuple[Item, str]], Batch | None, dict[str, str]]:
        """``(images looked at, those that were read with the hash of each, they as tensors, errors by id)``."""
        hashes, errors, new = dict[str, str](), dict[str, str](), []
        for item in items:
            try:
                hashes[item.id] = item.image.fingerprint()
            except UsageError as error:
                errors[item.id] = str(error)
                continue
            if item.id not in self.store or self.store.fingerprint(item.id) != hashes[item.id]:
                new.append(item)
        read = self.reader(new)
        return len(items), [(item, hashes[item.id]) for item in read.items], read.batch, errors | read.errors


def write_features(
    items: Sequence[Item],
    vision: VisionFeatures,
    folder: Path,
    about: About,
    *,
    batch_size: int = 32,
    threads: int = 2,
    fail: bool = True,
    overwrite: bool = False,
) -> tuple[int, dict[str, str]]:
    """Compute the features of every image that the folder does not hold yet, and keep them there.

    Stored features are recognised by the picture's content, so a changed image is computed again, and so are those of damaged
    files. A kill loses at most the unwritten shard; an interrupt or an error writes it. Batches are cut from ``items`` and
    stored whole, so a stop changes no feature.

    Args:
        items: the images.
        vision: computes.
        folder: where a ``FeatureStore`` is, or is to be.
        about: the store's own description.
        batch_size: images computed at once.
        threads: that read ahead.
        fail: stop at the first image that cannot be read.
        overwrite: delete the features in the folder first; other files stay.

    Returns:
        How many images were computed, and id and reason of those that could not be read.

    Raises:
        UsageError: the folder holds other features or, with ``overwrite``, none of tellapart's, another process computes
            features into it, or ``fail``, and an image cannot be read.
    """
    if overwrite and (folder / ABOUT).is_file():
        with Lock(folder / LOCK, "computing features into"):
            clear_features(folder, about)
    writer = FeatureWriter(folder, about)
    with Lock(folder / LOCK, "computing features into"):
        return _computed(items, vision, writer, batch_size=batch_size, threads=threads, fail=fail)


def _computed(
    items: Sequence[Item], vision: VisionFeatures, writer: FeatureWriter, *, batch_size: int, threads: int, fail: bool
) -> tuple[int, dict[str, str]]:
    store, computed, errors = FeatureStore(writer.path), 0, dict[str, str]()
    for reason in store.remove_damaged().values():
        logger.warning("note: %s; its images are computed again.", reason)
    reading = _Reading(vision, store)
    batches = iter([list(items[first : first + batch_size]) for first in range(0, len(items), batch_size)])
    try:
        with bar("features", len(items)) as running:
            for seen, read, batch, broken in read_ahead(lambda wait: next(batches, None), reading, threads=threads):
                errors |= broken
                if broken and fail:
                    raise UsageError(next(iter(broken.values())))
                if batch is not None:
                    arrays = vision(batch.inputs[vision.name])
                    writer.add(
                        (item.id, known, array.numpy()) for (item, known), array in zip(read, arrays, strict=True)
                    )
                computed += len(read)
                running.advance(seen)
    finally:
        writer.flush()
    return computed, errors
