"""Captions that some captioner wrote, in the forms that tools write them: rows of what the image goes by, and a caption."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tellapart.data.captions import read_text, read_unique, texts
from tellapart.data.folder import below, is_image, walk
from tellapart.data.formats.clipscore import ClipScore
from tellapart.data.formats.ids import decode_id
from tellapart.data.formats.lines import from_line, lines_of
from tellapart.data.formats.rows import CAPTION_COLUMNS, IMAGE_COLUMNS, choose_column, delimited_rows, json_rows
from tellapart.data.json_records import object_of, records_of
from tellapart.data.load import no_column, read_split, require_options, source_at
from tellapart.data.parquet import batches_of, opened
from tellapart.errors import UsageError
from tellapart.packed import GrowingTexts

ID_COLUMNS = ("image_id", "id", "cocoid", "__key__")
RESULT_COLUMNS = tuple(sorted(CAPTION_COLUMNS, key=lambda name: name != "caption"))
TABLES = (".jsonl", ".csv", ".tsv", ".parquet")
SIDECARS = (".txt", ".caption")
WRITTEN = "captions_results.json"
"""The captions in a folder that an evaluation wrote."""

_AT_ONCE = 4096
"""Rows of a Parquet file that are read together."""

FORMS = "write COCO results (a list of image_id and caption), ids to captions, or a table with such columns"


@dataclass(frozen=True)
class Result:
    """A caption, and what its image goes by: an id, a file name, or both."""

    caption: str
    image_id: str | None = None
    file: str | None = None


@dataclass(frozen=True)
class Results:
    """Captions unchanged, an image perhaps twice.

    Args:
        name: the file or folder without ending.
        rows: in its order.
        several: images with further captions, which are left out.
    """

    name: str
    rows: Sequence[Result]
    several: int = 0


class PackedRows(Sequence[Result]):
    """Rows that are made when they are asked for; a slice is a list."""

    def __init__(self, rows: Iterable[Result]) -> None:
        captions, ids, files = GrowingTexts(), GrowingTexts(), GrowingTexts()
        known = bytearray()  # bits: an id, a file
        for row in rows:
            captions.append(row.caption)
            ids.append(row.image_id or "")
            files.append(row.file or "")
            known.append((row.image_id is not None) + 2 * (row.file is not None))
        self.captions, self._ids, self._files = captions.packed(), ids.packed(), files.packed()
        self._known = bytes(known)

    def __len__(self) -> int:
        return len(self.captions)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return _row(self.captions[index], self._ids[index], self._files[index], self._known[index])

    def __iter__(self) -> Iterator[Result]:
        return map(_row, self.captions, self._ids, self._files, self._known)


def _row(caption: str, image_id: str, file: str, known: int) -> Result:
    return Result(caption, image_id if known & 1 else None, file if known & 2 else None)


def read_results(path: Path, *, caption_column: str | None = None) -> Results:
    """Read captions: COCO results, ids to captions, a table, text files named like their images, or any data set.

    Of a data set, and wherever an image has a list of captions, the first is taken. A table is a ``.jsonl``, ``.csv``,
    ``.tsv`` or ``.parquet`` file with a column of ``ID_COLUMNS`` or of file names, and one of
    ``RESULT_COLUMNS``.

    Args:
        path: the file or folder.
        caption_column: column or field with the caption, when its name is not a usual one.

    Raises:
        UsageError: it does not exist, holds no captions, or is broken; the sentence names the row.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist: name a run, a model, or a file of captions.")
    name = path.name.removesuffix(path.suffix) if path.is_file() else path.name
    several = 0

    def found() -> Iterator[Result]:
        nonlocal several
        for row, count in _rows(path, caption_column):
            several += count > 1
            if not _is_unicode(f"{row.image_id}{row.file}{row.caption}"):
                raise UsageError(f"{path}: {row} holds text that is not valid Unicode: correct it.")
            yield row

    captions = PackedRows(found())
    if not captions:
        raise UsageError(f"{path} holds no captions: {FORMS}.")
    return Results(name, captions, several)


def _is_unicode(text: str) -> bool:
    """Whether no half of a character is alone, as an escape in JSON can make it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


Counted = tuple[Result, int]
"""A row, and how many captions it had."""


def _rows(path: Path, caption_column: str | None) -> Iterable[Counted]:
    suffix = path.suffix.lower()
    if path.is_dir():
        if (path / WRITTEN).is_file():
            return _of_json(path / WRITTEN, caption_column)
        names = [name for _, names in walk(path) for name in names]
        alone = not any(map(is_image, names)) and any(name.endswith(SIDECARS) for name in names)
        if not alone:
            return _of_data(path, caption_column)
        _require_no_column(path, caption_column)
        return _of_sidecars(path)
    if suffix == ".json":
        return _of_json(path, caption_column)
    return (
        _of_table(path, _table(path, caption_column), caption_column)
        if suffix in TABLES
        else _of_data(path, caption_column)
    )


def _require_no_column(path: Path, caption_column: str | None) -> None:
    if caption_column is not None:
        raise no_column(path, caption_column)


def _of_json(path: Path, caption_column: str | None) -> Iterable[Counted]:
    packed = records_of(path)
    if packed is not None:
        return _of_table(path, ((f"row {n}", row) for n, row in enumerate(packed, start=1)), caption_column)
    try:
        content = object_of(path, ("images", "annotations")) or json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not readable JSON ({error}): write it again.") from error
    if content == {}:
        return ()
    if ClipScore.is_index(content):
        _require_no_column(path, caption_column)
        rows: Iterable[Any] = ({"image_id": name, "caption": value} for name, value in read_unique(path).items())
        return _of_table(path, ((f"image {row['image_id']!r}", row) for row in rows), None)
    if isinstance(content, dict) and "images" in content:
        return _of_data(path, caption_column)
    if not isinstance(content, list):
        raise UsageError(f"{path} is neither a list of captions nor a data set: {FORMS}.")
    return _of_table(path, ((f"row {n}", row) for n, row in enumerate(content, start=1)), caption_column)


def _of_table(path: Path, rows: Iterable[tuple[str, Any]], caption_column: str | None) -> Iterator[Counted]:
    """Rows with an id or a file name, and a caption or a list of them."""
    wanted = RESULT_COLUMNS if caption_column is None else (caption_column,)
    for where, row in rows:
        found = {str(name).lower(): value for name, value in row.items()} | row if isinstance(row, dict) else {}
        image_id = next((found[key] for key in ID_COLUMNS if found.get(key) is not None), None)
        file = next((found[key] for key in IMAGE_COLUMNS if isinstance(found.get(key), str)), None)
        column = next((key for key in wanted if key in found), None)
        if (image_id is None and file is None) or column is None:
            if caption_column is not None and found and column is None:
                choose_column(row, caption_column, RESULT_COLUMNS, "--caption_column", f"{path}: {where}")
            lacks = "no image" if image_id is None and file is None else "no caption"
            raise UsageError(f"{path}: {where} names {lacks} ({str(row)[:80]}): {FORMS}.")
        if image_id is not None and (isinstance(image_id, bool) or not isinstance(image_id, int | str)):
            raise UsageError(
                f"{path}: the id of {where} is {repr(image_id)[:80]}: it must be text or a whole number, such as 42."
            )
        who = str(image_id) if image_id is not None else file
        captions = texts(found[column], path, f"image {who!r}") or ("",)
        yield Result(captions[0], None if image_id is None else str(image_id), file), len(captions)


def _table(path: Path, caption_column: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a table, each with what messages call it."""
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        for number, row in json_rows(path):
            yield f"line {number}", row
    elif suffix == ".parquet":
        yield from _parquet(path, caption_column)
    else:
        for number, row in delimited_rows(path, "\t" if suffix == ".tsv" else ",\t;|"):
            yield f"line {number}", row


def _parquet(path: Path, caption_column: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    wanted = {*ID_COLUMNS, *IMAGE_COLUMNS, *RESULT_COLUMNS, caption_column}
    with opened(path) as file:
        choose_column(file.schema_arrow.names, caption_column, RESULT_COLUMNS, "--caption_column", path)
        names = [name for name in file.schema_arrow.names if name in wanted or name.lower() in wanted]
        batches = (batch.to_pylist() for _, batch in batches_of(file, names, path, _AT_ONCE))
        for number, row in enumerate(chain.from_iterable(batches), start=1):
            yield f"row {number}", row


def _of_sidecars(folder: Path) -> Iterator[Counted]:
    """Text files without their images: each is named like its image and holds a caption per line."""
    files = sorted(Path(where, name) for where, names in walk(folder) for name in names if name.endswith(SIDECARS))
    for file in files:
        lines = [from_line(line) for line in lines_of(read_text(file))] or [""]
        stem = below(file, folder).removesuffix(file.suffix)
        yield Result(lines[0], decode_id(stem)), len(lines)


def _of_data(path: Path, caption_column: str | None) -> Iterator[Counted]:
    """The images of all splits that have captions."""
    source = source_at(path, caption_column=caption_column, captions_only=True)
    require_options(source)
    for split in source.splits():
        for example in read_split(source, split):
            if example.references:
                yield Result(example.references[0], example.id, example.image.name), len(example.references)
