"""The images and clips to caption, as the words of a command line name them, in order."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tellapart.captioning.records import Item
from tellapart.data.clips import FrameFiles, on_disk
from tellapart.data.context import clean_context, sidecar_context
from tellapart.data.dataset import Example, with_damaged
from tellapart.data.folder import EXTENSIONS, find_images, find_videos, walk
from tellapart.data.formats.patterns import is_pattern
from tellapart.data.images import ImageSource
from tellapart.data.load import exists, read_split, require_columns, source_at
from tellapart.data.remote.addresses import is_web, scheme_of
from tellapart.data.video import KEY_FRAME, is_video
from tellapart.errors import UsageError
from tellapart.frames import Sampling

logger = logging.getLogger(__name__)

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
    words: Sequence[str],
    *,
    split: str | None = None,
    format: str | None = None,
    pictures: bool = True,
    frames: float | None = None,
    sampling: Sampling = "uniform",
    context: str | None = None,
    context_extension: str | None = None,
    **columns: Any,
) -> list[Item]:
    """The images and clips of files, folders (and the folders in them), patterns, addresses and data sets; none twice.

    A file is known by its path as given, an image of a data set by the id it has there. A video is one clip, unless ``frames``
    asks for its key-frames as images.

    Args:
        words: what was named.
        split: the part of the data sets; folders are then data sets too.
        format: how to read data sets; folders are then data sets too.
        pictures: whether a data set's pictures must be there.
        frames: take the key-frames of videos as images, at least this many seconds apart; None takes each video as one clip.
        sampling: which frames of clips are taken.
        context: column of tables with what is known of an image.
        context_extension: ending of the file next to an image with what is known of it.
        columns: ``image_column``, ``id_column`` and ``allow_private``, as ``load_dataset`` takes them.

    Raises:
        UsageError: nothing is named, something does not exist or holds no images, or two data sets share an id.
    """
    if not words:
        raise UsageError("no images were given: name image files, folders of them, or data sets.")
    if frames is not None and frames < 0:
        raise UsageError(f"--frames is {frames:g}: give seconds, 0 or more.")
    _require_existing(words, hub=split is not None or format is not None)
    items: dict[str, Item] = {}
    how = _How(split, format, pictures, frames, sampling, columns, context)
    for word in words:
        earlier = len(items)
        for item in _named(word, how):
            before = items.setdefault(item.id, item)
            if before.image != item.image:
                alone = list(items).index(item.id) >= earlier
                remedy = "correct the ids, or give another --id_column" if alone else "caption the data sets one by one"
                raise UsageError(
                    f"two images are called {item.id!r}, {before.image.name} and {item.image.name}: {remedy}."
                )
    found = _once(items.values()) if len(words) > 1 else list(items.values())
    if context_extension is None:
        return found
    known = [_with_sidecar(item, context_extension) for item in found]
    if not any(item.context for item in known):
        raise UsageError(
            f"no image has a file with words next to it that ends in {context_extension}: correct --context_extension, or leave "
            "it out."
        )
    return known


def _once(items: Iterable[Item]) -> list[Item]:
    """Without files that were named before, by a relative and an absolute path for one."""
    there: set[str] = set()
    found = []
    for item in items:
        if item.path is not None and item.id == str(item.path):
            path = os.path.abspath(item.path)
            if path in there:
                continue
            there.add(path)
        found.append(item)
    return found


def _with_sidecar(item: Item, extension: str) -> Item:
    return item if item.path is None else replace(item, context=sidecar_context(item.path, extension))


def _require_existing(words: Sequence[str], *, hub: bool) -> None:
    for word in words:
        if not word.strip():  # Path("") is the folder where we are
            raise UsageError("the name of an image, folder or data set is empty: name one.")
        if not exists(word) or (_is_hub_name(word) and not hub):
            raise UsageError(f"{word} does not exist: name an image file, a folder of them, or a data set.")


@dataclass(frozen=True)
class _How:
    """How words are read; arguments as those of ``plan``."""

    split: str | None
    format: Any
    pictures: bool
    frames: float | None
    sampling: Sampling
    columns: Mapping[str, Any]
    context: str | None = None


def _is_hub_name(word: str) -> bool:
    """Whether a word may be owner/name on the hub, or just a path that does not exist."""
    return not Path(word).exists() and scheme_of(word) is None and not is_pattern(word)


def _named(word: str, how: _How) -> list[Item]:
    path = Path(word)
    if how.frames is not None and (is_video(path.name) or path.is_dir() or is_pattern(word)):
        return _key_frames(word, how)
    as_data = how.split is not None or how.format is not None or how.context is not None or _names_columns(how)
    if as_data or not path.exists() or (path.is_file() and path.suffix.lower() in NOT_IMAGES):
        return _data(word, how)
    if path.is_file():
        return [Item(str(path), on_disk(path, how.sampling), path.name)]
    return _folder(path, word, how)


def _names_columns(how: _How) -> bool:
    return any(how.columns.get(name) is not None for name in ("image_column", "id_column"))


def _folder(path: Path, word: str, how: _How) -> list[Item]:
    names = [name for _, names in walk(path) for name in names]
    found = sorted([*find_images(path), *find_videos(path)])
    if not found and any(Path(name).suffix.lower() in NOT_IMAGES for name in names):
        return _data(word, how)
    if not found:
        raise UsageError(
            f"{word} holds no images ({', '.join(sorted(EXTENSIONS))}) and no videos: name another folder."
        )
    packed = [name for name in names if Path(name).suffix.lower() in (".tar", ".parquet", ".arrow")]
    if packed:
        logger.warning(
            "note: %s holds images, which are captioned, and also %s (%d such files): name these to caption what is in them.",
            word,
            packed[0],
            len(packed),
        )
    return [Item(str(file), on_disk(file, how.sampling), file.relative_to(path).as_posix()) for file in found]


def _key_frames(word: str, how: _How) -> list[Item]:
    """Key-frames of a video, or of the videos of a folder, with the images there."""
    if how.format not in (None, "unlabelled"):
        raise UsageError(f"--frames reads videos, which format {how.format!r} has not: leave one of the two out.")
    return _data(word, replace(how, format="unlabelled"))


def _data(word: str, how: _How) -> list[Item]:
    """The images of a data set, of all its splits unless one is named; missing files are noticed later."""
    try:
        examples = _examples(word, how, captions_only=False)
    except UsageError:
        if how.pictures:
            raise
        examples = _examples(word, how, captions_only=True)
    if not examples:
        raise UsageError(f"{word} holds no images: name other data, or another --split.")
    return [
        Item(
            example.id,
            example.image,
            _relative(example.id, example.image),
            "" if how.context is None else clean_context(example.references),
        )
        for example in examples
    ]


def _examples(word: str, how: _How, *, captions_only: bool) -> Sequence[Example]:
    # Captions are not looked at here: the column of contexts is read in their place.
    source = source_at(
        word,
        format=how.format,
        captions_only=captions_only,
        seconds_between=how.frames or 0.0,
        sampling=how.sampling,
        caption_column=how.context,
        **how.columns,
    )
    require_columns(source, how.columns.get("image_column"), how.columns.get("id_column"), captions=how.context)
    return with_damaged(source.read(source.splits()) if how.split is None else read_split(source, how.split))


def _relative(name: str, image: ImageSource) -> str:
    """An image's place below a folder: its id if that reads like a file's path, else its file's name."""
    if isinstance(image, FrameFiles):
        return f"{PurePosixPath(name).name}.webp"  # what its frames are written as
    path = PurePosixPath(name.partition("://")[2] or name)
    inside = not path.is_absolute() and ".." not in path.parts
    inside = inside and (path.suffix.lower() in EXTENSIONS or is_video(path.name.partition(KEY_FRAME)[0]))
    if inside:
        return path.as_posix()
    return PurePosixPath(image.name.partition("?")[0] if is_web(image.name) else image.name).name
