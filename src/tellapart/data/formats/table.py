"""Tables of images anywhere, with or without captions: text, JSON lines and Parquet.

The text tables are in the manner of open_clip (``filepath`` and ``title``, a row per caption), the Parquet files also in that of
Hugging Face's ``datasets`` (``image`` with ``bytes`` and ``path``) and of img2dataset's lists of addresses (``url``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from tellapart.data.captions import decoded, parse_json, require_id
from tellapart.data.dataset import Example, PackedExamples, joined
from tellapart.data.folder import find_images, root_of
from tellapart.data.formats.base import Place, ReadOnly
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.cells import image_in, require_text
from tellapart.data.formats.names import Readable
from tellapart.data.formats.row_images import RowImages
from tellapart.data.formats.rows import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    IMAGE_ID,
    Gathered,
    Row,
    caption_cell,
    caption_rows,
    choose_captions,
    choose_column,
    delimited_rows,
    delimiter_of,
    find_column,
    id_cell,
    json_objects,
    write_delimited,
)
from tellapart.data.formats.splits import UNNAMED, in_order, split_in
from tellapart.data.parquet import PATH, Columns, ParquetImage, columns_of, rows_of
from tellapart.data.tars import is_tar
from tellapart.errors import UsageError
from tellapart.files import REVIEW
from tellapart.packed import Texts

METADATA = "metadata"
"""Stem of the tables that other formats read."""


class _Table(ReadOnly):
    """A file with one of some endings, several named by a pattern, or a folder with them at its top.

    An image's id is its id column (``image_id``), else its path or address as given, else the number of its row. Images are
    looked for in the given folder, else in that of the file or its ``images``.
    """

    has_columns = True
    endings: ClassVar[tuple[str, ...]]

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether the file's ending or, in folders without images and tars, a heading says so."""
        if not place.is_folder:
            return cls._is_table(place.sample)
        if not (tables := cls._tables(place)):
            return False
        headings = [set(cls._heading(file)) for file in tables]
        return any(map(_names_images, headings)) and (cls._beside_images(headings) or not _holds_images(place))

    @classmethod
    def _is_table(cls, path: Path) -> bool:
        return cls._is_named(path.name)

    @classmethod
    def _is_named(cls, name: str) -> bool:
        return name.lower().endswith(cls.endings) and Path(name).stem != METADATA

    @classmethod
    def _tables_in(cls, folder: Path, names: Sequence[str]) -> list[Path]:
        return [folder / name for name in names if cls._is_named(name) and not name.lower().endswith(REVIEW)]

    @classmethod
    def _beside_images(cls, headings: Sequence[set[str]]) -> bool:
        """Whether tables with such headings count in a folder that also holds images, which may have other captions."""
        return False

    @classmethod
    def _tables(cls, place: Place) -> list[Path]:
        if not place.is_folder:
            return [Path(name) for name in place.listed]
        return cls._tables_in(place.path, place.names)

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is such a file."""
        if not cls._tables(place):
            raise UsageError(
                f"{place.path} holds no {cls.endings[0]} file, which format {cls.name!r} needs: name the file itself."
            )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.divided = len(self.by_split) > 1

    @cached_property
    def by_split(self) -> dict[str, list[Path]]:
        """Split -> its files: of several files whose names all tell a split, as that says; else all are of one."""
        files = self._tables(self.place)
        told = [split_in(file.stem) for file in files]
        if len(files) < 2 or None in told or len(set(told)) < 2:
            return {UNNAMED: files}
        found: dict[str, list[Path]] = {}
        for split, file in zip(told, files, strict=True):
            found.setdefault(str(split), []).append(file)
        return found

    def splits(self) -> list[str]:
        """What the files' names tell."""
        return in_order(self.by_split)

    def read(self, splits: Sequence[str]) -> Sequence[Example]:
        """All images, file by file, in the order of their first rows."""
        parts: list[Sequence[Example]] = []
        for split in splits:
            for file in self.by_split[split]:
                parts.append(self.read_file(file, sum(map(len, parts))))
        if not any(parts):
            raise UsageError(f"{self.place.given} holds no images: it has no rows.")
        return joined(parts)

    def read_file(self, path: Path, before: int) -> Sequence[Example]:
        """The images of one file whose cells name them.

        Args:
            path: the file.
            before: images of the files before it.
        """
        found, place = Gathered(path), self.place
        image, captions, known = "", None, set[str]()
        for where, row in self.rows(path):
            if not image:
                image = choose_column(row, place.image_column, self._image_columns(), "image_column", path)
            if captions is None and not row.keys() <= known:  # lines of JSON may have fields that the first one lacks
                known |= row.keys()
                captions = choose_captions(row, place.caption_column, path, needed=place.captions_only)
            cell = self._image_of(row, image, path, where)
            texts = () if captions is None else caption_cell(row.get(captions), path, where)
            found.add(cell, texts, id_cell(row, place.id_column, path, where), where)
        return self._examples(path, found)

    def _image_columns(self) -> list[str]:
        """What may name the images: where these are not asked for, their ids do."""
        return [*IMAGE_COLUMNS, *([IMAGE_ID] if self.place.captions_only else [])]

    @staticmethod
    def _image_of(row: Row, column: str, path: Path, where: str) -> str:
        """What a row calls its image: a path, an address or an id."""
        if column != IMAGE_ID:
            return require_text(row.get(column), column, path, where)
        require_id(row.get(column), path, where)
        return str(row[column])

    def _examples(self, path: Path, found: Gathered) -> Sequence[Example]:
        roots = [self.place.images] if self.place.images else [path.parent, path.parent / "images"]
        root = root_of(found.names, roots) or roots[0]
        ids = Texts.of(name if own is None else own for name, own in zip(found.names, found.ids(), strict=True))
        examples = PackedExamples(
            ids, found.captions(), Texts.of(found.names), lambda name: image_in(name, root, self.place, path)
        )
        if not self.place.captions_only:
            return list(examples)
        for name in found.names:
            image_in(name, root, self.place, path)  # raises for addresses that tables may not name
        return examples

    @classmethod
    @abstractmethod
    def _heading(cls, path: Path) -> Sequence[str]:
        """The names of the columns, at a glance: whatever is wrong with the file is said when it is read."""

    @abstractmethod
    def rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        """The rows of a file, each with what messages call it."""


def _names_images(heading: set[str]) -> bool:
    return find_column(heading, IMAGE_COLUMNS) is not None


def _holds_images(place: Place) -> bool:
    return any(map(is_tar, place.names)) or bool(find_images(place.path))


class Csv(_Table):
    """A ``.csv`` file, or a folder with one at its top."""

    name: ClassVar[Readable] = "csv"
    links = frozenset({"copy", "symlink", "none"})
    endings: ClassVar[tuple[str, ...]] = (".csv",)
    delimiters: ClassVar[str] = ",\t;|"

    @classmethod
    def _is_table(cls, path: Path) -> bool:
        if cls.endings == (".csv",) and path.suffix.lower() == ".txt" and path.is_file():  # Kaggle's captions.txt
            heading = cls._heading(path)
            return _names_images(set(heading)) and find_column(heading, CAPTION_COLUMNS) is not None
        return super()._is_table(path)

    @classmethod
    def _beside_images(cls, headings: Sequence[set[str]]) -> bool:
        return any(_names_images(heading) and find_column(heading, CAPTION_COLUMNS) for heading in headings)

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is one such file."""
        tables = cls._tables(place)
        if place.is_folder and len(tables) != 1:
            what = ", ".join(file.name for file in tables) or f"no {cls.endings[0]} file"
            raise UsageError(f"{place.path} holds {what}, but format {cls.name!r} needs one: name the file itself.")

    def __init__(self, place: Place) -> None:
        self.require(place)
        super().__init__(place)

    @classmethod
    def _heading(cls, path: Path) -> Sequence[str]:
        with path.open("rb") as file:
            line = file.readline(1 << 16).decode("utf-8-sig", errors="replace")
        return [name.strip().strip('"') for name in line.split(delimiter_of(line, cls.delimiters))]

    def rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        """One a row below the heading."""
        for line, row in delimited_rows(path, self.delimiters):
            yield f"line {line}", row

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


class JsonLines(_Table):
    """A ``.jsonl`` or ``.ndjson`` file with an object per line, or a folder of them without images next to them."""

    name = "jsonl"
    spans_splits = True
    endings = (".jsonl", ".ndjson")

    @classmethod
    def _heading(cls, path: Path) -> Sequence[str]:
        with path.open("rb") as file:
            line = file.readline(1 << 20)
        try:
            first = parse_json(decoded(line, str(path)), path)
        except UsageError:
            return []
        return list(first) if isinstance(first, dict) else []

    def rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        """One per line."""
        yield from json_objects(path)


class Parquet(_Table):
    """A ``.parquet`` file with paths, addresses or bytes of images, or a folder of them (also in its ``data``).

    Bytes are in a struct with the fields ``bytes`` and ``path``, as ``datasets`` writes them, or in a binary column.
    """

    name = "parquet"
    spans_splits = True
    endings = (".parquet",)

    @classmethod
    def _tables(cls, place: Place) -> list[Path]:
        found = super()._tables(place)
        inner = place.path / "data"
        if found or not place.is_folder or not inner.is_dir():
            return found
        return cls._tables_in(inner, sorted(path.name for path in inner.iterdir()))

    @classmethod
    def _heading(cls, path: Path) -> Sequence[str]:
        try:
            columns = columns_of(path)
        except UsageError:
            return []
        return [*columns.names, *(["image"] if columns.structs else [])]

    def rows(self, path: Path) -> Iterator[tuple[str, Row]]:
        """The columns that are used, row by row."""
        columns, place = columns_of(path), self.place
        wanted = choose_column(columns.names, place.image_column, self._image_columns(), "image_column", path)
        for number, (_, _, row) in enumerate(rows_of(path, self._used(path, columns, wanted)), start=1):
            yield f"row {number}", row

    def _used(self, path: Path, columns: Columns, *further: str) -> list[str]:
        captions = choose_captions(columns.names, self.place.caption_column, path, needed=self.place.captions_only)
        if self.place.id_column is not None:
            choose_column(columns.names, self.place.id_column, (), "id_column", path)
        wanted = [*further, captions, self.place.id_column, IMAGE_ID]
        return list(dict.fromkeys(name for name in wanted if name in columns.names))

    def read_file(self, path: Path, before: int) -> Sequence[Example]:
        """The images of one file; bytes are read when an image is opened."""
        columns, place = columns_of(path), self.place
        known = [*sorted(columns.structs, key=columns.names.index), *self._image_columns()]
        image = choose_column(columns.names, place.image_column, known, "image_column", path)
        if image not in columns.images:
            return super().read_file(path, before)
        used = self._used(path, columns)
        captions = choose_captions(columns.names, place.caption_column, path, needed=place.captions_only)
        named = [f"{image}.{PATH}"] if image in columns.paths else []
        found, images = Gathered(path), RowImages[ParquetImage](path)
        root = (place.images or path.parent) if place.base_of(path) is None else None
        for number, (group, row, values) in enumerate(rows_of(path, [*named, *used])):
            where = f"row {number + 1}"
            given = id_cell(values, place.id_column, path, where)
            key = found.key(given, before + number, where)
            texts = () if captions is None else caption_cell(values.get(captions), path, where)
            found.add(key, texts, given, where)
            file = (values.get(image) or {}).get(PATH) if named else None
            source = ParquetImage(path, group, row, image, str(file or number), root)
            images.add(key, source, file, where)
        return [Example(key, images.of[key], tuple(own)) for key, own in found.items()]
