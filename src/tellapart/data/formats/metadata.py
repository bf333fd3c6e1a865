"""Folders of images, with or without a table of captions named ``metadata``, in the manner of Hugging Face's
imagefolder."""

from __future__ import annotations

import json
import logging
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tellapart.data.captions import field
from tellapart.data.dataset import Example
from tellapart.data.folder import below, find_pictures, require_pictures
from tellapart.data.formats.base import Layout, Place
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.cells import image_in, require_text
from tellapart.data.formats.rows import (
    IMAGE_COLUMNS,
    IMAGE_ID,
    Gathered,
    Row,
    caption_cell,
    caption_rows,
    delimited_rows,
    find_column,
    id_cell,
    json_objects,
    write_delimited,
)
from tellapart.data.parquet import columns_of, rows_of
from tellapart.data.remote.addresses import scheme_of
from tellapart.errors import UsageError
from tellapart.files import write_text

logger = logging.getLogger(__name__)

FILE_NAME = "file_name"
CAPTION_KEYS = ("text", "caption", "captions", "prompt")
TABLES = ("metadata.jsonl", "metadata.csv", "metadata.parquet")


class _Metadata(Layout):
    """A folder of images with a table; images that it does not name have no captions.

    An image's id is its ``image_id`` in the table, else its path relative to the folder. Images come in the order of
    the table, those that it does not name after them by path.
    """

    table: ClassVar[str]
    needs_table: ClassVar[bool] = True
    _captioned = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.has_columns = (place.folder / self.table).is_file()

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether the first table in the folder is of this kind, or the path is one."""
        if not place.is_folder:
            return place.path.name == cls.table
        return next((name for name in TABLES if name in place.names), None) == cls.table

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless it is a folder, with a table where one is needed."""
        if not place.is_folder and place.path.name != cls.table:
            raise UsageError(
                f"{place.path} is not a folder, which format {cls.name!r} needs: correct the path or the format."
            )
        if cls.needs_table and not (place.folder / cls.table).is_file():
            raise UsageError(f"{place.folder} holds no {cls.table}, which format {cls.name!r} needs: add it.")

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All images below the folder, and those that the table names elsewhere."""
        root = self.place.images or self.place.folder
        start = self.place.start or root
        files = [] if self.place.captions_only else [below(file, root) for file in find_pictures(root)]
        found = self._gather(root, start)
        if not found.names and not files:
            require_pictures(root)
        silent = [name for name in files if name not in found.names]
        if found.names and silent:
            logger.warning(
                "%s: %d of %d images are not in %s and have no captions.", root, len(silent), len(files), self.table
            )
        return [
            Example(
                own_id or (name if os.path.isabs(name) or scheme_of(name) else below(root / name, start)),
                image_in(name, root, self.place, found.path),
                tuple(captions),
            )
            for name, own_id, captions in [
                *zip(found.names, found.ids(), found.captions(), strict=True),
                *((name, None, []) for name in silent),
            ]
        ]

    def _gather(self, root: Path, start: Path) -> Gathered:
        """What the table says of these files; the table lies with them, or above the folders of the splits."""
        own = next((folder for folder in (root, self.place.folder, start) if (folder / self.table).is_file()), None)
        if own is None:
            return Gathered(root / self.table)
        path, found = own / self.table, Gathered(own / self.table)
        inside = "" if own != start or root == start else f"{below(root, start)}/"
        whole = f"{own.absolute().as_posix()}/"
        column = self.place.image_column
        for where, row in self.rows(path):
            column = column or find_column(row, IMAGE_COLUMNS) or FILE_NAME
            given = require_text(field(row, column, path, where), column, path, where)
            name = given if scheme_of(given) else Path(given).as_posix().removeprefix(whole)
            if not name.startswith(inside):
                continue  # of another split
            own_id = id_cell(row, self.place.id_column, path, where)
            found.add(name.removeprefix(inside), self._captions(row, path, where, first=not found.names), own_id, where)
        return found

    def _captions(self, row: Row, path: Path, where: str, *, first: bool) -> tuple[str, ...]:
        """The captions of a row; a table whose first row has no field for them has none, unless they are what is asked for."""
        if self.place.caption_column is not None:
            return caption_cell(field(row, self.place.caption_column, path, where), path, where)
        named = [key for key in CAPTION_KEYS if key in row]
        if first:
            self._captioned = bool(named) or self.place.captions_only
        if not named and self._captioned:
            raise UsageError(
                f"{path}: {where} has none of {', '.join(map(repr, CAPTION_KEYS))}: "
                "add a caption or an empty list, or give caption_column."
            )
        if not named:
            return ()
        filled = next((key for key in named if row[key] is not None), named[0])
        return caption_cell(row[filled], path, where)

    @abstractmethod
    def rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        """The rows of the table, each with what messages call it."""

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """The images and the table next to them."""
        (examples,) = splits.values()
        named = [(images.put(example, folder), example) for example in examples]
        cls.write_table(folder / cls.table, named, one_caption=images.one_caption)

    @classmethod
    @abstractmethod
    def write_table(cls, path: Path, named: Sequence[tuple[str, Example]], *, one_caption: bool) -> None:
        """The table of images under their file names."""


def _records(named: Sequence[tuple[str, Example]], *, one_caption: bool) -> list[dict[str, Any]]:
    """Rows with one ``text`` each where every image has one caption, else with a list of ``captions``."""
    return [
        {FILE_NAME: name, IMAGE_ID: example.id}
        | ({"text": example.references[0]} if one_caption else {"captions": list(example.references)})
        for name, example in named
    ]


class Folder(_Metadata):
    """Any folder of images; captions, if any, are in ``metadata.jsonl``:
    ``{"file_name": ..., "text" | "caption" | "captions": ...}``."""

    name = "folder"
    table = "metadata.jsonl"
    needs_table = False

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether it is a folder."""
        return place.is_folder or super().looks_like(place)

    def rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        """One per line that is not blank."""
        yield from json_objects(path)

    @classmethod
    def write_table(cls, path: Path, named: Sequence[tuple[str, Example]], *, one_caption: bool) -> None:
        """One JSON object per line."""
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in _records(named, one_caption=one_caption))
        write_text(path, "".join(lines))


class MetadataCsv(_Metadata):
    """The same with ``metadata.csv``, a row per caption."""

    name = "metadata-csv"
    table = "metadata.csv"

    def rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        """One per row below the heading."""
        for line, row in delimited_rows(path, ",\t;|"):
            yield f"line {line}", row

    @classmethod
    def write_table(cls, path: Path, named: Sequence[tuple[str, Example]], *, one_caption: bool) -> None:
        """``file_name,image_id,text``."""
        rows = [row for name, example in named for row in caption_rows(example, name)]
        write_delimited(path, [FILE_NAME, IMAGE_ID, "text"], rows, delimiter=",")


class MetadataParquet(_Metadata):
    """The same with ``metadata.parquet``, a row per image."""

    name = "metadata-parquet"
    table = "metadata.parquet"

    def rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        """One per row."""
        for number, (_, _, row) in enumerate(rows_of(path, columns_of(path).names), start=1):
            yield f"row {number}", row

    @classmethod
    def write_table(cls, path: Path, named: Sequence[tuple[str, Example]], *, one_caption: bool) -> None:
        """Columns ``file_name``, ``image_id``, and ``text`` or ``captions``."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        captions = ("text", pa.string()) if one_caption else ("captions", pa.list_(pa.string()))
        schema = pa.schema([(FILE_NAME, pa.string()), (IMAGE_ID, pa.string()), captions])
        pq.write_table(pa.Table.from_pylist(_records(named, one_caption=one_caption), schema=schema), path)
