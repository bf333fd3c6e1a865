"""The options that say what captions are measured on; a run's own recipe fills in what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tellapart.errors import UsageError
from tellapart.frames import Sampling
from tellapart.recipe.runs import Made

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.results import EvaluationResult

Models = Sequence[str | Path | None]
"""Paths or names of models, some of which may not have been named."""


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which images; what is null comes from the run's own recipe.

    Args:
        data: ``world`` (the built-in one), a Karpathy or COCO json, or a folder of images.
        split: which part of the data.
        images: folder that the file's image paths are relative to.
        features: image features for a captioner that reads features instead of images: a folder of tellapart features, a
            folder of .npy or .npz files named by image id, or an HDF5 file.
        size: size of the built-in world.
        image_column: column of a table with the image's path, URL or bytes, when its name is not a usual one.
        id_column: column of a table with the images' ids.
        allow_private: let URLs in tables lead to hosts of a private network.
        limit: maximum number of images, the first ones.
        center_crop: cut every image to its largest centred square before any model reads it, or do not.
        on_error: an image that cannot be read is an error (fail), or all images are read once beforehand and unreadable ones
            are left out (skip).
    """

    data: str | None = None
    split: str | None = None
    images: Path | None = None
    features: Path | None = None
    size: Literal["full", "small"] | None = None
    image_column: str | None = None
    id_column: str | None = None
    allow_private: bool | None = None
    limit: int | None = None
    center_crop: bool | None = None
    on_error: Literal["fail", "skip"] | None = None


def of_result(options: DataOptions, result: EvaluationResult) -> DataOptions:
    """The options for the images that were measured: with the split that ``score`` was asked for, if they name none."""
    from tellapart.evaluation.results import SPLIT

    return replace(options, split=options.split or result.details.get(SPLIT))


@dataclass(frozen=True)
class Where:
    """The images that the options, and for the rest a run, name.

    Args:
        dataset: those that can be read.
        whole: these and those that were left out.
        path: of the data.
        split: of the data.
        size: of the built-in world.
        features: what the captioner reads, if not pictures.
        unreadable: id of each image that was left out -> why.
    """

    dataset: CaptionDataset
    whole: CaptionDataset
    path: str
    split: str
    size: Literal["full", "small"]
    features: Path | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)


def load(
    options: DataOptions,
    run: Made | None,
    *,
    word: str = "",
    seen_by: Models | None = None,
    pictures: bool = False,
    tell: bool = True,
) -> Where:
    """Read them.

    Args:
        options: which images.
        run: what fills in what they leave out.
        word: what was named, which may be no run.
        seen_by: models that read the images in addition to the run's own; None if no model reads them: a model card needs
            captions only, and a page shows a caption without its picture if that is broken.
        pictures: whether every picture must be readable even if no model reads it, as for pictures shown to people.
        tell: log which images are left out.

    Raises:
        UsageError: neither says which data, or these do not exist.
    """
    from tellapart.data.dataset import problems_of
    from tellapart.recipe.feature_inputs import features_at, load_pictured, usable

    path, images, format, limit = options.data, options.images, None, options.limit
    features = options.features
    split, size = options.split or "val", options.size or "full"
    if run is not None and run.evaluation.held_out and options.data is None and options.split is None:
        return _held_out(options, run, pictures=pictures or _looks(seen_by), tell=tell)
    if run is not None:
        split = options.split or run.evaluation.split or "val"
        size = options.size or run.data.size
        if path is None:
            path = run.evaluation.path or run.data.path
            same = path == run.data.path
            images = images or run.evaluation.images or (run.data.images if same else None)
            features = features or run.evaluation.features or run.data.features
            format = run.data.format if same else None
            limit = limit if limit is not None or split != run.evaluation.split else run.evaluation.limit
    if path is None:
        why = f", since {word} is not a run: correct the name, or" if word else ":"
        raise UsageError(f"the images are unknown{why} give --data, such as world or a COCO json.")
    on_error = options.on_error or (run.data.on_error if run else "fail")
    instead = features_at(features)
    dataset = load_pictured(
        path,
        split,
        features=instead,
        images=images,
        format=format,
        size=size,
        limit=limit,
        missing_files=on_error != "fail",
        seconds_between=run.data.seconds_between if run else 0.0,
        center_crop=cropped(options.center_crop, run),
        ignore_unused=run is not None and options.data is None,
        **_columns(options, run),
    )
    on_error = "fail" if on_error == "fail" else "skip"
    pictures = pictures or features is None or _looked_at(features, run, seen_by)
    readable, left_out = usable(dataset, on_error, instead, pictures=pictures, tell=tell)
    left_out = [*problems_of(dataset.examples), *left_out]
    return Where(readable, dataset, path, split, size, features, dict(left_out))


def _columns(options: DataOptions, run: Made | None) -> dict[str, Any]:
    """How tables are read: as the options say, else as a run's recipe does where its data are meant."""
    given = {name: getattr(options, name) for name in ("image_column", "id_column", "allow_private")}
    own = run.data.columns if run is not None and options.data is None else {}
    own["sampling"] = sampled(None, run)  # part of how the captioner sees clips, whichever the data
    return own | {name: value for name, value in given.items() if value is not None}


def cropped(given: bool | None, run: Made | None) -> bool:
    """Whether images are cut to their centred square: as an option says, else as a run's recipe does."""
    return given if given is not None else run is not None and run.data.center_crop


def sampled(given: Sampling | None, run: Made | None) -> Sampling:
    """Which frames of clips are taken: those that an option says, else those that a run's recipe does."""
    if given is not None:
        return given
    return "uniform" if run is None else run.data.sampling


def _looks(seen_by: Models | None) -> bool:
    """Whether one of the models opens pictures."""
    from tellapart.listeners.kinds import reads_features

    return any(model is not None and not reads_features(model) for model in seen_by or ())


def _looked_at(features: Path, run: Made | None, seen_by: Models | None) -> bool:
    """Whether a model opens the pictures, though the captioner reads features: those that are broken its run left out, too."""
    from tellapart.recipe.feature_inputs import opens_pictures

    if run is None or seen_by is None:
        return _looks(seen_by)
    if _looks(seen_by):
        return True
    data = replace(run.data, features=features)
    return opens_pictures(data, run.listener, run.evaluation, own=run.own_listener, itm=run.itm)


def _held_out(options: DataOptions, run: Made, *, pictures: bool, tell: bool) -> Where:
    """The images of a run's data that it did not train on; with ``pictures`` these are opened even if the run opens none."""
    from tellapart.data.held_out import hold_out
    from tellapart.data.load import require_limit
    from tellapart.recipe.feature_inputs import features_at, load_pictured, opens_pictures, usable

    opened = opens_pictures(run.data, run.listener, run.evaluation, own=run.own_listener, itm=run.itm)
    data, held_out = run.data, run.evaluation.held_out or 0
    require_limit(options.limit)
    features, on_error = options.features or data.features, options.on_error or data.on_error
    instead = features_at(features)
    dataset = load_pictured(
        data.path,
        data.split,
        features=instead,
        images=options.images or data.images,
        format=data.format,
        size=data.size,
        limit=data.limit,
        missing_files=on_error != "fail",
        seconds_between=data.seconds_between,
        center_crop=cropped(options.center_crop, run),
        **_columns(options, run),
    )
    if data.on_error == "skip":  # so did the run before it held images out
        dataset, _ = usable(dataset, "skip", instead, pictures=opened)
    _, held = hold_out(dataset, held_out)
    held = held[: run.evaluation.limit if options.limit is None else options.limit]
    skips = "fail" if on_error == "fail" else "skip"
    readable, left_out = usable(held, skips, instead, pictures=opened or pictures, tell=tell)
    return Where(readable, held, data.path, data.split, data.size, features, dict(left_out))
