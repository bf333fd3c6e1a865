"""From one layout of images and captions to another, without loss."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tellapart.data.captions import require_files
from tellapart.data.clips import FrameFiles
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.formats import layout
from tellapart.data.formats.base import Layout
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.names import Format, Link
from tellapart.data.formats.open import Source
from tellapart.data.formats.splits import SPLIT_NAMES, UNNAMED
from tellapart.data.images import ImageFile, PackedImage
from tellapart.data.load import read_split, require_limit, require_whole
from tellapart.data.parquet import ParquetImage
from tellapart.errors import UsageError
from tellapart.files import fresh_folder
from tellapart.progress import bar

NAMES_SPLITS = frozenset({"karpathy", "datasets"})
"""Formats that hold splits of any name; others have a folder or file for each, which is known by its name."""


@dataclass(frozen=True)
class Converted:
    """Summary of the written data.

    Args:
        folder: where.
        images: split -> images.
        captions: split -> captions.
    """

    folder: Path
    images: dict[str, int]
    captions: dict[str, int]


def convert(
    source: Source,
    folder: str | Path,
    to: Format,
    *,
    split: str | None = None,
    link: Link = "copy",
    overwrite: bool = False,
    limit: int | None = None,
) -> Converted:
    """Write data in another format: ids, splits, captions (also blank ones) and the images' bytes stay what they are.

    The folder appears whole or not at all. It holds a folder for each split where the format has no other way to divide
    data; data that are not divided, or of which one split was asked for, lie in the folder itself.

    Args:
        source: the data, opened by ``source_at``.
        folder: where to write; made here.
        to: the format to write.
        split: only this one; ``train`` includes ``restval``, as in training.
        link: how images come along; formats differ in what they allow.
        overwrite: replace the folder if it exists.
        limit: maximum number of images per split, the first ones; None means all.

    Raises:
        UsageError: the folder exists, something is broken, or the format cannot keep an id, a caption or a split.
    """
    folder, kind = Path(folder), layout(to)
    if folder.exists() and not overwrite:
        raise UsageError(f"{folder} exists: name another folder, or give --overwrite to replace it.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder.")
    if link not in kind.links:
        raise UsageError(f"link is {link!r}, but format {to!r} allows {' or '.join(sorted(kind.links))}: choose that.")
    require_limit(limit)
    splits = {name: read_split(source, name)[:limit] for name in [split]} if split else _all(source, limit)
    _check(splits, source, to)
    if folder.exists():
        _refuse_to_replace_itself(splits, source, folder)
    total = sum(map(len, splits.values()))
    single = all(len(example.references) == 1 for examples in splits.values() for example in examples)
    with _naming(folder), fresh_folder(folder) as temporary, bar(f"writing {to}", total) as shown:
        carrier = Carrier(link, one_caption=single, done=shown.advance)
        _write(kind, temporary, splits, carrier, itself=split is not None or list(splits) == [UNNAMED])
    return Converted(
        folder,
        {name: len(examples) for name, examples in splits.items()},
        {name: sum(len(example.references) for example in examples) for name, examples in splits.items()},
    )


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """An error for want of space names the folder that is written, not the image that is just copied."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error.errno, error.strerror, str(folder)) from error
        raise


def _all(source: Source, limit: int | None) -> dict[str, Sequence[Example]]:
    return {name: source.read([name])[:limit] for name in source.splits()}


def _write(
    kind: type[Layout], folder: Path, splits: Mapping[str, Sequence[Example]], carrier: Carrier, *, itself: bool
) -> None:
    if kind.spans_splits:
        kind.write(folder, splits, carrier)
        return
    for name, examples in splits.items():
        inner = folder if itself else folder / name
        inner.mkdir(exist_ok=True)
        kind.write(inner, {name: examples}, carrier)


def _check(splits: Mapping[str, Sequence[Example]], source: Source, to: Format) -> None:
    """Raise unless all images are there, have distinct names and can be written."""
    for name, examples in splits.items():
        if name not in SPLIT_NAMES and to not in NAMES_SPLITS:
            raise UsageError(
                f"split {name!r} has no name that format {to!r} knows ({', '.join(SPLIT_NAMES)}): "
                f"choose one of {', '.join(sorted(NAMES_SPLITS))}."
            )
        CaptionDataset(examples, name=f"{source.place.given} ({name})")
        require_whole(examples)
        require_files(examples, source.place.path)
        for example in examples:
            for text in (example.id, *example.references):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise UsageError(
                        f"{source.place.given}: image {example.id!r} has text that is not valid Unicode ({text[:60]!r}): "
                        "correct it."
                    ) from error


def _refuse_to_replace_itself(splits: Mapping[str, Sequence[Example]], source: Source, folder: Path) -> None:
    """Raise if what is read lies in the folder that is to be replaced, or is a link into it."""
    own = folder.resolve()
    read = [example.image for examples in splits.values() for example in examples]
    paths = [image.path for image in read if isinstance(image, ImageFile)]
    paths += [path for image in read if isinstance(image, FrameFiles) for path in image.paths]
    files = {path if path.is_symlink() else path.parent for path in paths}
    files |= {image.archive for image in read if isinstance(image, PackedImage)}
    files |= {image.table for image in read if isinstance(image, ParquetImage)}
    for path in (source.place.path, source.place.images, *files):
        if path is not None and (path.resolve() == own or own in path.resolve().parents):
            raise UsageError(f"{folder} holds what is to be converted ({path}): name another folder.")
