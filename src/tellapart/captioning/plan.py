"""What is to be captioned: the images that words of a command line name, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from tellapart.captioning.records import Item
from tellapart.data.folder import EXTENSIONS, find_images, walk
from tellapart.data.images import ImageFile
from tellapart.data.load import read_split, source_at
from tellapart.errors import UsageError

NOT_IMAGES = frozenset(
    {
        ".arrow",
        ".csv",
        ".gz",
        ".json",
        ".jsonl",
        ".ndjson",
        ".parquet",
        ".tar",
        ".tgz",
        ".token",
        ".toml",
        ".tsv",
        ".txt",
        ".yaml",
        ".yml",
        ".zip",
    }
)
"""Endings of files that are read as data sets; any other file is tried as an image."""


def plan(
    words: Sequence[str], *, split: str | None = None, format: str | None = None, pictures: bool = True
) -> list[Item]:
    """The images of image files, folders (and the folders in them) and data sets; none twice.

    An image file is known by its path as given, an image of a data set by the id it has there.

    Args:
        words: what was named.
        split: the part of the data sets; folders are then data sets too.
        format: how to read data sets; folders are then data sets too.
        pictures: whether a data set's pictures must be there.

    Raises:
        UsageError: nothing is named, something does not exist or holds no images, or two data sets share an id.
    """
    if not words:
        raise UsageError("no images were given: name image files, folders of them, or data sets.")
    items: dict[str, Item] = {}
    for word in words:
        for item in _named(word, split, format, pictures):
            before = items.setdefault(item.id, item)
            if before.image != item.image:
                raise UsageError(
                    f"two images are called {item.id!r}, {before.image.name} and {item.image.name}: caption the data sets one "
                    "by one."
                )
    return list(items.values())


def _named(word: str, split: str | None, format: str | None, pictures: bool) -> list[Item]:
    path = Path(word)
    as_data = split is not None or format is not None
    if not path.exists():
        if "{" in word or "*" in word or "://" in word or (as_data and "/" in word):
            return _data(word, split, format, pictures)
        raise UsageError(f"{word} does not exist: name an image file, a folder of them, or a data set.")
    if as_data or (path.is_file() and path.suffix.lower() in NOT_IMAGES):
        return _data(word, split, format, pictures)
    if path.is_file():
        return [Item(str(path), ImageFile(path), path.name)]
    found = find_images(path)
    if not found and any(Path(name).suffix.lower() in NOT_IMAGES for _, names in walk(path) for name in names):
        return _data(word, split, format, pictures)
    if not found:
        raise UsageError(f"{word} holds no images ({', '.join(sorted(EXTENSIONS))}): name another folder.")
    return [Item(str(file), ImageFile(file), file.relative_to(path).as_posix()) for file in found]


def _data(word: str, split: str | None, format: Any, pictures: bool) -> list[Item]:
    """The images of a data set, of all its splits unless one is named; files that are missing are found out later."""
    try:
        source = source_at(word, format=format)
        examples = source.read(source.splits()) if split is None else read_split(source, split)
    except UsageError:
        if pictures:
            raise
        source = source_at(word, format=format, captions_only=True)
        examples = source.read(source.splits()) if split is None else read_split(source, split)
    if not examples:
        raise UsageError(f"{word} holds no images: name other data, or another --split.")
    return [Item(example.id, example.image, _relative(example.id, example.image.name)) for example in examples]


def _relative(name: str, image: str) -> str:
    """An image's place below a folder: its id if that reads like a file's path, else its file's name."""
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts and path.suffix.lower() in EXTENSIONS
    return path.as_posix() if inside else PurePosixPath(image).name
