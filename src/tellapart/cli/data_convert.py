"""``tellapart data convert``: images and captions from one layout to another, without loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tellapart.cli.command import options_of
from tellapart.cli.console import say
from tellapart.data.formats.names import Format, Link, Readable
from tellapart.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of ``tellapart data convert``.

    Args:
        to: the format to write; folder is images with a metadata.jsonl.
        format: how to read the data; null tells by their look.
        split: convert only this one; null converts all.
        images: folder that holds the images, when it cannot be guessed.
        link: copy the images, make symbolic links to them, or none: name them where they are (coco, karpathy, lavis, csv,
            tsv).
        overwrite: replace the folder if it exists.
        limit: only the first so many images of each split.
        image_column: column or field with the image or its path, when its name is not a usual one.
        caption_column: column or field with the captions, likewise.
        caption_extension: ending of the caption files beside images, when there are several kinds.
    """

    to: Format
    format: Readable | None = None
    split: str | None = None
    images: Path | None = None
    link: Link = "copy"
    overwrite: bool = False
    limit: int | None = None
    image_column: str | None = None
    caption_column: str | None = None
    caption_extension: str | None = None


def run(argv: Sequence[str]) -> int:
    """Convert what the first word names into the folder that the second names."""
    chosen = options_of(
        argv,
        ConvertOptions,
        usage="data convert DATA FOLDER --to FORMAT",
        description="Write images and captions in another layout: ids, splits, captions and image bytes stay as they are.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if len(words) != 2:
        raise UsageError(f"convert needs data to read and a folder to write, not {len(words)} words: name both.")
    from tellapart.data.convert import convert
    from tellapart.data.load import source_at

    source = source_at(
        words[0],
        images=options.images,
        format=options.format,
        image_column=options.image_column,
        caption_column=options.caption_column,
        caption_extension=options.caption_extension,
    )
    done = convert(
        source,
        words[1],
        options.to,
        split=options.split,
        link=options.link,
        overwrite=options.overwrite,
        limit=options.limit,
    )
    for split, images in done.images.items():
        say(f"{split}: {images} images, {done.captions[split]} captions")
    say(f"wrote {done.folder} ({options.to})")
    return 0
