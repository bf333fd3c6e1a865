"""One door to all data on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tellapart.data.captions import require_files, without_blank_captions
from tellapart.data.context import clean_context, with_contexts
from tellapart.data.dataset import CaptionDataset, Example, LazyExamples, problems_of
from tellapart.data.formats.base import Place
from tellapart.data.formats.hub import PREFIX, hub_name
from tellapart.data.formats.names import Format, Readable
from tellapart.data.formats.open import Source, open_source
from tellapart.data.formats.patterns import is_pattern
from tellapart.data.formats.splits import members
from tellapart.data.remote.addresses import scheme_of
from tellapart.errors import UsageError
from tellapart.frames import Sampling

__all__ = [
    "Format",
    "Readable",
    "load_dataset",
    "load_references",
    "read_split",
    "source_at",
    "splits_of",
]


def load_dataset(
    path: str | Path,
    *,
    split: str | None = None,
    images: str | Path | None = None,
    format: Readable | None = None,
    limit: int | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    id_column: str | None = None,
    caption_extension: str | None = None,
    missing_files: bool = False,
    seconds_between: float = 0.0,
    sampling: Sampling = "uniform",
    allow_private: bool = False,
    context_column: str | None = None,
    ignore_unused: bool = False,
) -> CaptionDataset:
    """The images of one split with their captions. Captions are kept byte for byte; those that are empty or only space
    are dropped and counted in the log.

    Args:
        path: data in one of the layouts of ``docs/reference/data.md``, a folder of images, image files or shards by a pattern, a
            data set on the Hugging Face hub (``owner/name``), or an address of HTTP or of a file system that fsspec knows.
        split: which split; ``train`` includes ``restval``, and ``val`` also finds ``validation``, ``valid`` or ``dev``.
            Data that are not divided into splits answer to any name, and need none.
        images: folder of the images, when it cannot be guessed from the path.
        format: how to read the path, instead of telling by its look.
        limit: maximum number of images, the first ones; None means all.
        image_column: column or field with the image or its path, when its name is not a usual one.
        caption_column: column or field with the captions, likewise.
        id_column: column with the images' ids; None takes ``image_id``.
        caption_extension: ending of the caption files next to images, when there are several kinds.
        allow_private: let web addresses lead to hosts of a private network.
        missing_files: let pass images whose files do not exist, which raise when they are opened, and archives and videos
            that are damaged, whose readable part counts.
        context_column: column with what is known of an image besides its pixels; None reads none.
        seconds_between: of videos read as key-frames, leave out key-frames sooner than this after the last one taken.
        sampling: which frames of clips are taken: ``uniform``, or ``key_frames`` only.
        ignore_unused: let pass columns, ``images`` and ``caption_extension`` that these data have no use for, since they were
            given for other data as well.

    Raises:
        UsageError: the path, split or format does not exist, a file is broken (with its line), images are missing, there
            is nothing in it, there are several splits and none was chosen, or an argument has no use here.

    Example:
        >>> data = load_dataset("photos/")
        >>> data[0].id, data[0].image.open().size
        ('1.jpg', (640, 480))
    """
    require_limit(limit)
    if isinstance(path, str) and not path.strip():  # Path("") is the folder where we are
        raise UsageError("the name of the data is empty: name a file, a folder or a data set.")
    source = source_at(
        path,
        images=images,
        format=format,
        image_column=image_column,
        caption_column=caption_column,
        id_column=id_column,
        caption_extension=caption_extension,
        seconds_between=seconds_between,
        sampling=sampling,
        allow_private=allow_private,
    )
    require_columns(source, captions=context_column)
    if not ignore_unused:
        require_options(source)
    file = source.place.path
    name = file.name if split is None else f"{file.name} ({split})"
    found = read_split(source, split or only_split(source))[:limit]
    if not missing_files:
        require_whole(found)
    if isinstance(found, LazyExamples):
        return CaptionDataset(found, name=name)
    examples = without_blank_captions(found, file)
    if not missing_files:
        require_files(examples, file)
    dataset = CaptionDataset(examples, name=name)
    if context_column is None:
        return dataset
    contexts = source_at(
        path,
        images=images,
        format=format,
        image_column=image_column,
        caption_column=context_column,
        id_column=id_column,
        allow_private=allow_private,
    )
    known = read_split(contexts, split or only_split(contexts))  # those without a context with them
    return with_contexts(dataset, {example.id: clean_context(example.references) for example in known})


def load_references(
    path: str | Path,
    *,
    split: str | None = None,
    prefer: str | None = None,
    format: Readable | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    id_column: str | None = None,
    caption_extension: str | None = None,
    ignore_unused: bool = False,
) -> CaptionDataset:
    """The captions of data whose images are not needed and need not be there: a file of annotations is enough.

    Images are known by their ids; their paths are what the file says, whether or not something is there.

    Args:
        path: as for ``load_dataset``, also the reference tool's own files, whose images have nothing but an id.
        split: which split; null takes the only one.
        prefer: the split to take where none was named and there are several.
        format: as for ``load_dataset``, like the rest.
        image_column: column with the image's path.
        caption_column: column with the captions.
        id_column: column with the images' ids.
        caption_extension: ending of the caption files next to images.
        ignore_unused: as for ``load_dataset``.

    Raises:
        UsageError: as ``load_dataset``, and if there are several splits and none was chosen.
    """
    source = source_at(
        path,
        format=format,
        image_column=image_column,
        caption_column=caption_column,
        id_column=id_column,
        caption_extension=caption_extension,
        captions_only=True,
    )
    if not ignore_unused:
        require_options(source)
    split = split or only_split(source, prefer)
    file = source.place.path
    named = f"{file.name} ({split})" if source.divided else file.name
    found = without_blank_captions(read_split(source, split), file)
    if not found:  # images without captions were left out
        raise UsageError(f"{named} holds no captions: name data whose images have captions, or check the split.")
    return CaptionDataset(found, name=named)


def only_split(source: Source, prefer: str | None = None) -> str:
    """The split of data that have one, else the preferred one.

    Raises:
        UsageError: there are several, and none is preferred.
    """
    there = source.splits()
    split = there[0] if len(there) == 1 else prefer
    if split is None:
        raise UsageError(f"{source.place.given} has the splits {', '.join(there)}: give --split with one of them.")
    return split


def splits_of(
    path: str | Path,
    *,
    images: str | Path | None = None,
    format: Readable | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    caption_extension: str | None = None,
) -> list[str]:
    """The splits that the data at ``path`` are divided into, under their own names; ``["train"]`` where they are not.

    Arguments and errors are those of ``load_dataset``.
    """
    return source_at(
        path,
        images=images,
        format=format,
        image_column=image_column,
        caption_column=caption_column,
        caption_extension=caption_extension,
    ).splits()


def source_at(
    path: str | Path,
    *,
    images: str | Path | None = None,
    format: Readable | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    id_column: str | None = None,
    caption_extension: str | None = None,
    captions_only: bool = False,
    seconds_between: float = 0.0,
    sampling: Sampling = "uniform",
    allow_private: bool = False,
) -> Source:
    """The data at ``path``, opened; arguments and errors are those of ``load_dataset``.

    With ``captions_only`` images are not looked for.
    """
    given, root = str(path), None if images is None else Path(images)
    require_existing(given)
    if root is not None and not root.exists():
        raise UsageError(f"{root} does not exist: check the path.")
    if root is not None and not root.is_dir():
        raise UsageError(f"{root} is not a folder: give the folder that holds the images.")
    place = Place(
        given,
        images=root,
        image_column=image_column,
        caption_column=caption_column,
        id_column=id_column,
        caption_extension=caption_extension,
        captions_only=captions_only,
        seconds_between=seconds_between,
        sampling=sampling,
        allow_private=allow_private,
    )
    if scheme_of(given) is not None and hub_name(given) is None:
        from tellapart.data.formats.remote import open_remote

        return open_remote(place, format)
    return open_source(place, format)


def require_existing(given: str) -> None:
    """Raise where nothing is there, as far as is known without a network.

    Raises:
        UsageError: naming it.
    """
    if exists(given):
        return
    if given.startswith(PREFIX):
        raise UsageError(f"{given} is not a name on the hub: write {PREFIX}owner/name.")
    raise UsageError(f"{given} does not exist: check the path.")


def require_limit(limit: int | None) -> None:
    """Raise for fewer images than one."""
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: keep at least 1 image.")


def require_whole(examples: Sequence[Example]) -> None:
    """Raise where an archive or a video is damaged that should have held images."""
    if problems := problems_of(examples):
        raise UsageError(problems[0][1])


def no_column(given: object, name: str) -> UsageError:
    """The error for a column that was named of data without columns."""
    return UsageError(f"{given} is not a table and has no column {name!r}: leave the column out.")


def require_columns(source: Source, *names: str | None, captions: str | None = None) -> None:
    """Raise where a column is named of data that have none, such as a folder of photos.

    Args:
        source: the data.
        names: the columns that were named; None where none was.
        captions: a column to be read in place of the captions, which some data without columns also have.

    Raises:
        UsageError: naming the first column.
    """
    has_columns = getattr(source, "has_columns", False)
    named = None if has_columns else next((name for name in names if name is not None), None)
    if named is None and not has_columns and not getattr(source, "has_fields", False):
        named = captions
    if named is not None:
        raise no_column(source.place.given, named)


def require_options(source: Source) -> None:
    """Raise where the data were opened with an option that they have no use for.

    Raises:
        UsageError: a column of data that are not a table, a folder of images for data that hold theirs, or an ending of
            caption files for data without such files.
    """
    place = source.place
    require_columns(source, place.image_column, place.id_column, captions=place.caption_column)
    if place.images is not None and getattr(source, "holds_images", False):
        raise UsageError(f"{place.given} holds its images and takes none from {place.images}: leave images out.")
    if place.caption_extension is not None and not getattr(source, "has_caption_files", False):
        ending = place.caption_extension
        raise UsageError(
            f"{place.given} has no {ending} files next to images: correct caption_extension, or leave it out."
        )


def exists(given: str) -> bool:
    """Whether something is there, as far as is known without a network: a path, a pattern, or any address."""
    if Path(given).exists() or is_pattern(given) or hub_name(given) is not None:
        return True
    return scheme_of(given) is not None and not (given.startswith(PREFIX) and given.count("/") < 3)


def read_split(source: Source, split: str) -> Sequence[Example]:
    """The images of a split as they are stored, blank captions included.

    Raises:
        UsageError: there is no such split, or the data are broken.
    """
    there = source.splits()
    chosen = members(split, there) if source.divided else there
    if not chosen:
        raise UsageError(
            f"{source.place.given} has no split {split!r}, only {', '.join(sorted(there))}: choose one of them."
        )
    return source.read(chosen)
