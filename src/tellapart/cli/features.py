"""``tellapart features``: what a vision model sees in every image, computed once, for captioners that read features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tellapart.cli.command import options_of
from tellapart.cli.console import note, say
from tellapart.cli.unreadable import leave_out
from tellapart.data.formats.names import Readable
from tellapart.errors import UsageError, count_of, reason_of
from tellapart.ranges import NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from tellapart.captioners.vision import VisionFeatures
    from tellapart.captioning.records import Item


@dataclass(frozen=True, kw_only=True)
class FeaturesOptions:
    """Options of ``tellapart features``.

    Args:
        model: a vision model of transformers (ViT, DINOv2, ResNet, ConvNeXt, Swin, the image half of CLIP or SigLIP): a
            Hugging Face id, a model folder, or world/backbone.
        output_dir: folder for the features; if it holds some of the same kind, only what is missing is computed.
        pool: mean keeps one vector per image or clip, grid one per position of the last feature map, frames one per frame of a
            clip.
        frames: frames read of each clip; null reads stills, or as many frames as a tower of clips was made for.
        dtype: precision of the stored features.
        split: only this part of the data; null takes all parts.
        images: folder that the file's image paths are relative to; null means the file's own folder.
        format: layout of the data; null detects it.
        image_column: column of a table with the image's path, URL or bytes, when its name is not a usual one.
        id_column: column of a table with the images' ids; null takes image_id, else the path or URL.
        allow_private: let URLs in tables lead to hosts of a private network.
        size: size of the built-in world; other data ignore it.
        limit: maximum number of images per part, the first ones; null means all.
        on_error: an image that cannot be read is an error (fail), or is left out and listed (skip).
        strict: exit with code 2 if an image could not be read; otherwise only if none could.
        overwrite: delete the features in the folder and compute all again; other files stay.
        batch_size: images computed at once.
        num_workers: threads that read images ahead.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart features dataset_coco.json --model facebook/dinov2-base --output_dir features",
        "tellapart features clips/ --model microsoft/resnet-152 --frames 8 --output_dir features",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "what is computed": ("model", "pool", "frames", "dtype"),
        "images": ("split", "images", "format", "size", "limit", "on_error", "strict"),
        "output": ("output_dir", "overwrite"),
        "speed": ("batch_size", "num_workers"),
    }
    model: str
    output_dir: Path
    pool: Literal["mean", "grid", "frames"] = "mean"
    frames: int | None = None
    dtype: Literal["float32", "float16"] = "float32"
    split: str | None = None
    images: Path | None = None
    format: Readable | None = None
    image_column: str | None = None
    id_column: str | None = None
    allow_private: bool = False
    size: Literal["full", "small"] = "full"
    limit: int | None = None
    on_error: Literal["fail", "skip"] = "fail"
    strict: bool = False
    overwrite: bool = False
    batch_size: PositiveInt = 32
    num_workers: NonNegativeInt = 2


def run(argv: Sequence[str]) -> int:
    """Compute the features of what the first word names."""
    chosen = options_of(
        argv,
        FeaturesOptions,
        usage="features DATA --model NAME --output_dir DIR",
        description="Compute image features with a vision model. After a stop, the same command resumes.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if len(words) != 1:
        raise UsageError(f"features needs one data set or folder of images, not {len(words)} words: name it.")
    from tellapart.captioning.features import write_features
    from tellapart.data.features.store import About, FeatureStore
    from tellapart.recipe.models import device

    items = items_of(words[0], options)
    vision = _vision(options)
    width = _width(vision, options.model)
    about = About(options.model, vision.fingerprint(), options.pool, width, options.dtype, vision.num_frames)
    if vision.loses_order:
        note(
            "note: the mean over frames of an image model has lost their order; --pool frames keeps one vector per frame."
        )
    computed, errors = write_features(
        items,
        vision.to(device()),
        options.output_dir,
        about,
        batch_size=options.batch_size,
        threads=options.num_workers,
        fail=options.on_error == "fail",
        overwrite=options.overwrite,
    )
    there = len(FeatureStore(options.output_dir))
    say(
        f"{options.output_dir}: features of {count_of(there, 'image')} ({options.pool}, {width} wide), {computed} computed now"
    )
    return leave_out(errors.values(), len(items), strict=options.strict)


def items_of(path: str, options: FeaturesOptions) -> list[Item]:
    """The images of the data, of all parts unless one is asked for.

    Raises:
        UsageError: the data cannot be read, or two parts share an id.
    """
    from tellapart.captioning.records import Item
    from tellapart.data.dataset import with_damaged
    from tellapart.data.load import splits_of
    from tellapart.recipe.models import VIDEO_WORLD, WORLD, load_data
    from tellapart.world import WORLD_SPLITS
    from tellapart.world.video import VIDEO_SPLITS

    worlds = {WORLD: WORLD_SPLITS, VIDEO_WORLD: VIDEO_SPLITS}
    if options.split is not None:
        splits = [options.split]
    elif path in worlds:
        splits = list(worlds[path])
    else:
        splits = splits_of(path, images=options.images, format=options.format, image_column=options.image_column)
    items: dict[str, Item] = {}
    for split in splits:
        dataset = load_data(
            path,
            split,
            images=options.images,
            format=options.format,
            size=options.size,
            limit=options.limit,
            missing_files=options.on_error == "skip",
            image_column=options.image_column,
            id_column=options.id_column,
            allow_private=options.allow_private,
        )
        for example in with_damaged(dataset.examples):
            if items.setdefault(example.id, Item(example.id, example.image, example.id)).image != example.image:
                raise UsageError(
                    f"two parts of {path} have an image {example.id!r}: give --split, and each part a folder of its own."
                )
    return list(items.values())


def _vision(options: FeaturesOptions) -> VisionFeatures:
    from tellapart.captioners.vision import VisionFeatures
    from tellapart.recipe.models import model_folder

    folder = model_folder(options.model, size=options.size)
    return VisionFeatures.from_pretrained(folder, pool=options.pool, frames=options.frames)


def _width(vision: VisionFeatures, model: str) -> int:
    """Numbers in a feature vector, found on a grey picture.

    Raises:
        UsageError: the model does not look at pictures in the usual way.
    """
    from PIL import Image

    grey = Image.new("RGB", (64, 64), "grey")
    try:
        return vision(vision.process([grey if vision.num_frames is None else [grey] * vision.num_frames])).shape[-1]
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = reason_of(error)
        raise UsageError(f"--model {model} gives no features of a picture ({reason}): name a vision model.") from error
