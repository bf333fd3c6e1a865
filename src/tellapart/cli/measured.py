"""The options that say what captions are measured on; a run's own recipe fills in what is left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tellapart.cli.runs import Made
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which images; what is null comes from the run's own recipe.

    Args:
        data: ``world`` (the built-in one), a Karpathy or COCO json, or a folder of images.
        split: which part of the data.
        images: folder that the file's image paths are relative to.
        size: size of the built-in world.
        limit: use only the first so many images.
    """

    data: str | None = None
    split: str | None = None
    images: Path | None = None
    size: Literal["full", "small"] | None = None
    limit: int | None = None


def load(options: DataOptions, run: Made | None) -> CaptionDataset:
    """The images that the options, and for the rest the run, name.

    Raises:
        UsageError: neither says which data, or these do not exist.
    """
    from tellapart.cli.models import load_data

    path, images, format, split, limit, size = options.data, options.images, None, options.split, options.limit, None
    if run is not None:
        size = run.data.size
        split = split or run.evaluation.split or "val"
        if path is None:
            path = run.evaluation.path or run.data.path
            same = path == run.data.path
            images = images or run.evaluation.images or (run.data.images if same else None)
            format = run.data.format if same else None
            limit = limit if limit is not None or split != run.evaluation.split else run.evaluation.limit
    if path is None:
        raise UsageError("there is no saying which images: give --data, such as world or a COCO json.")
    chosen = options.size or size or "full"
    return load_data(path, split or "val", images=images, format=format, size=chosen, limit=limit)
