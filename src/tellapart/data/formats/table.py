"""Text tables of images anywhere, in the manner of open_clip: ``filepath`` and ``title``, a row a caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from tellapart.data.dataset import Example
from tellapart.data.folder import root_of
from tellapart.data.formats.base import Layout, Place
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.names import Format
from tellapart.data.formats.rows import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    IMAGE_ID,
    Gathered,
    caption_cell,
    caption_rows,
    choose_column,
    delimited_rows,
    delimiter_of,
    write_delimited,
)
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError


class Csv(Layout):
    """A ``.csv`` file, or a folder with one at its top. An image's id is its ``image_id``, else its path as given.

    Images are looked for in the given folder, else in that of the file or its ``images``.
    """

    name: ClassVar[Format] = "csv"
    links = frozenset({"copy", "symlink", "none"})
    endings: ClassVar[tuple[str, ...]] = (".csv", ".txt")
    delimiters: ClassVar[str] = ",\t;|"

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether the file's ending or, for .txt and in folders, its heading says so."""
        if not place.is_folder:
            return place.path.suffix.lower() == cls.endings[0] or (
                place.path.suffix.lower() in cls.endings and _has_image_column(place.path, cls.delimiters)
            )
        return any(_has_image_column(file, cls.delimiters) for file in cls._tables(place))

    @classmethod
    def _tables(cls, place: Place) -> list[Path]:
        if not place.is_folder:
            return [place.path]
        return [place.path / name for name in place.names if name.lower().endswith(cls.endings[0])]

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is one such file."""
        tables = cls._tables(place)
        if len(tables) != 1:
            what = ", ".join(file.name for file in tables) or f"no {cls.endings[0]} file"
            raise UsageError(f"{place.path} holds {what}, but format {cls.name!r} needs one: name the file itself.")

    @cached_property
    def file(self) -> Path:
        """The table."""
        self.require(self.place)
        return self._tables(self.place)[0]

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All images, in the order of their first rows."""
        path, found = self.file, Gathered(self.file)
        image_column = caption_column = ""
        for line, row in delimited_rows(path, self.delimiters):
            if not image_column:
                image_column = choose_column(row, self.place.image_column, IMAGE_COLUMNS, "image_column", path)
                caption_column = choose_column(row, self.place.caption_column, CAPTION_COLUMNS, "caption_column", path)
            where = f"line {line}"
            if not row[image_column]:
                raise UsageError(f"{path}, {where}: {image_column!r} is empty: name an image.")
            found.add(row[image_column], caption_cell(row[caption_column], path, where), row.get(IMAGE_ID), where)
        if not found.captions:
            raise UsageError(f"{path} holds no images: it has a heading and no rows.")
        roots = [self.place.images] if self.place.images else [path.parent, path.parent / "images"]
        root = root_of(found.captions, roots) or roots[0]
        return [
            Example(found.ids.get(name, name), ImageFile(root / name), tuple(captions))
            for name, captions in found.captions.items()
        ]

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """``captions.csv`` and ``images/``."""
        (examples,) = splits.values()
        rows: list[list[str]] = []
        for example in examples:
            path = str(Path("images", images.put(example, folder / "images")))
            rows += caption_rows(example, path)
        heading = ["filepath", IMAGE_ID, "title"]
        write_delimited(folder / f"captions{cls.endings[0]}", heading, rows, delimiter=cls.delimiters[0])


class Tsv(Csv):
    """The same between tabs."""

    name = "tsv"
    endings = (".tsv",)
    delimiters = "\t"


def _has_image_column(path: Path, delimiters: str) -> bool:
    with path.open("rb") as file:  # a glance: whatever else is wrong with the file is said when it is read
        line = file.readline(1 << 16).decode("utf-8-sig", errors="replace")
    names = [name.strip().strip('"') for name in line.split(delimiter_of(line, delimiters))]
    return any(name in IMAGE_COLUMNS for name in names) and any(name in CAPTION_COLUMNS for name in names)
