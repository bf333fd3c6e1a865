"""Parquet files of images: rows read batch by batch, and image bytes unpacked one row group at a time.

A row group is compressed, so one image of it cannot be read alone. It is unpacked into the cache folder when one of its images
is first read; after that each image is a byte range of a file. Memory holds a few rows at a time, whatever the row group's size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tellapart.data.archives import MOST_RATIO, MOST_UNFOLDED
from tellapart.data.decoding import decode
from tellapart.data.images import ImageFile, printable
from tellapart.data.sniff import ImageError
from tellapart.errors import UsageError
from tellapart.files import beside, cache_dir
from tellapart.locks import in_turn

if TYPE_CHECKING:
    from PIL import Image

VERSION = 1
"""Of the unpacked files; another unpacks again."""
ROWS = 1024
"""Rows without images that are read at once."""
IMAGES = 16
"""Rows with images that are read at once."""
BYTES, PATH = "bytes", "path"
"""Fields of an image in Hugging Face's layout."""


@contextmanager
def opened(path: Path | BinaryIO, shown: str | None = None) -> Iterator[Any]:
    """The open file; whatever pyarrow raises, also while its rows are read, becomes one sentence.

    Args:
        path: of the file, or what reads it.
        shown: how an error names it; none: as ``path``.

    Raises:
        UsageError: it is not a Parquet file, or is damaged.
    """
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        # Without pre_buffer and with a buffer, pages are read as they are needed, not a whole column of a row group.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            yield file
    except (ArrowException, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UsageError(f"{shown or path} is not a readable parquet file ({reason}): write it again.") from error


@dataclass(frozen=True)
class Columns:
    """The columns of a Parquet file.

    Args:
        names: all of them, in order.
        images: those that can hold image bytes: structs with ``bytes``, and plain binary.
        structs: those of them that are structs.
        paths: those of the structs that also have a ``path``.
    """

    names: tuple[str, ...]
    images: tuple[str, ...]
    structs: frozenset[str]
    paths: frozenset[str]


def columns_of(path: Path) -> Columns:
    """The columns of a file.

    Raises:
        UsageError: it is not a Parquet file.
    """
    with opened(path) as file:
        return columns_in(file.schema_arrow)


def columns_in(schema: Any) -> Columns:
    """The columns of an Arrow schema.

    Args:
        schema: as ``pyarrow.parquet.ParquetFile(...).schema_arrow`` gives it.
    """
    import pyarrow as pa

    structs = {name for name in schema.names if _has(schema, name, BYTES)}
    binary = {field.name for field in schema if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)}
    images = tuple(name for name in schema.names if name in structs | binary)
    paths = frozenset(name for name in structs if _has(schema, name, PATH))
    return Columns(tuple(schema.names), images, frozenset(structs), paths)


def _has(schema: Any, column: str, field: str) -> bool:
    import pyarrow as pa

    kind = schema.field(column).type
    return pa.types.is_struct(kind) and kind.get_field_index(field) >= 0


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """``(row group, row in it, values)`` of some columns, read batch by batch.

    Args:
        path: the file.
        columns: what to read; ``image.path`` reads one field of a struct.

    Raises:
        UsageError: the file is damaged.
    """
    with opened(path) as file:
        if not columns:
            for group in range(file.num_row_groups):
                yield from ((group, number, {}) for number in range(file.metadata.row_group(group).num_rows))
            return
        last, row = 0, 0
        for group, batch in batches_of(file, columns, path, ROWS):
            last, row = group, row if group == last else 0
            for values in batch.to_pylist():
                yield group, row, values
                row += 1


def batches_of(file: Any, columns: Sequence[str], path: Path, rows: int) -> Iterator[tuple[int, Any]]:
    """``(row group, some of its rows)`` of columns without images.

    Args:
        file: as ``opened`` gives it.
        columns: what to read; ``image.path`` reads one field of a struct.
        path: of the file.
        rows: read at once.

    Raises:
        UsageError: it is a decompression bomb, by what it says of the columns, or by what comes of them.
    """
    most, unfolded = _most_unfolded(path), 0
    groups = range(file.num_row_groups)
    chunks = [
        each.column(number) for each in map(file.metadata.row_group, groups) for number in range(each.num_columns)
    ]
    if sum(each.total_uncompressed_size for each in chunks if _is_of(each.path_in_schema, columns)) > most:
        raise _bomb(path, most)
    for group in groups:
        for batch in file.iter_batches(rows, row_groups=[group], columns=list(columns)):
            unfolded += sum(map(_bytes, batch.columns))
            if unfolded > most:  # equal cells are stored once
                raise _bomb(path, most)
            yield group, batch


def _bytes(column: Any) -> int:
    """Of the values of a column, of categories those that its rows name."""
    import pyarrow as pa

    whole = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return int(whole.nbytes)


def _is_of(field: str, columns: Sequence[str]) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in columns)


def _most_unfolded(table: Path) -> int:
    """Bytes that what is read of a file may have."""
    return max(MOST_UNFOLDED, MOST_RATIO * table.stat().st_size)


def _bomb(table: Path, most: int) -> UsageError:
    return UsageError(f"{table} unfolds to more than {most:,} bytes, as a decompression bomb does: leave it out.")


@dataclass(frozen=True)
class ParquetImage:
    """An image in a Parquet file: its bytes, or the path that is given where bytes are missing.

    Args:
        table: the file.
        group: the row group.
        row: the row in it.
        column: the image's column.
        member: the file name of the image, as the table says, else its row.
        root: folder that such a path is relative to; None for a table from elsewhere, which must not name files
            of this machine.
    """

    table: Path
    group: int
    row: int
    column: str
    member: str
    root: Path | None = None

    @property
    def name(self) -> str:
        """The table and the file name."""
        return printable(f"{self.table}/{self.member}")

    @cached_property
    def _unpacked(self) -> Path:
        return unpacked(self.table, self.group, self.column)

    def read(self) -> bytes:
        """The image's bytes.

        Raises:
            ImageError: the row has none, or the table is damaged.
        """
        try:
            data = _range(self._unpacked, self.row)
        except UsageError as error:
            raise ImageError(str(error)) from error
        except OSError as error:
            raise ImageError(f"{self.name} cannot be unpacked ({error.strerror}): check {cache_dir()}.") from error
        if data is not None:
            return data
        if self.root is not None and (self.root / self.member).is_file():
            return ImageFile(self.root / self.member).read()
        raise ImageError(f"{self.name} is empty: remove the row, or give it an image.")

    def open(self) -> Image.Image:
        """The decoded image, upright, in RGB.

        Raises:
            ImageError: as ``read``, and if it cannot be decoded.
        """
        return decode(self.read(), self.name)

    def fingerprint(self) -> str:
        """SHA-256 of the encoded bytes."""
        return hashlib.sha256(self.read()).hexdigest()


def unpacked(table: Path, group: int, column: str) -> Path:
    """The file with the image bytes of a row group one after another, next to ``.npy`` with ``[M, 2]`` offsets and sizes.

    Made unless it is there for a file of this path, size and time; a row without bytes has the size -1.

    Raises:
        UsageError: the table is damaged.
        OSError: the table cannot be read, or the cache not written.
    """
    stat = table.stat()
    key = json.dumps([VERSION, str(table.absolute()), stat.st_size, stat.st_mtime_ns, group, column])
    stored = cache_dir() / "parquet" / f"{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}.bin"
    if not _ranges(stored).is_file():
        with in_turn(stored.with_suffix(".lock"), stored, tells=False):  # others do not unpack the same again
            if not _ranges(stored).is_file():
                _unpack(_bytes_of(table, group, column), stored, table)
    return stored


def _unpack(images: Iterable[bytes | None], stored: Path, table: Path) -> None:
    places, most = [], _most_unfolded(table)
    with beside(stored) as temporary, temporary.open("wb") as blob:
        for data in images:
            places.append((blob.tell(), -1 if data is None else len(data)))
            blob.write(data or b"")
            if blob.tell() > most:  # equal cells are stored once
                raise _bomb(table, most)
    with beside(_ranges(stored)) as temporary, temporary.open("wb") as file:
        np.save(file, np.array(places, dtype=np.int64).reshape(-1, 2))


def _ranges(stored: Path) -> Path:
    return stored.with_suffix(".npy")


def _bytes_of(table: Path, group: int, column: str) -> Iterator[bytes | None]:
    import pyarrow as pa

    with opened(table) as file:
        struct = pa.types.is_struct(file.schema_arrow.field(column).type)
        wanted = f"{column}.{BYTES}" if struct else column
        for batch in file.iter_batches(IMAGES, row_groups=[group], columns=[wanted]):
            for value in batch.column(0).to_pylist():
                yield value[BYTES] if struct and value is not None else value


def _range(stored: Path, row: int) -> bytes | None:
    offset, size = np.load(_ranges(stored), mmap_mode="r")[row].tolist()
    if size < 0:
        return None
    with stored.open("rb") as file:
        file.seek(offset)
        return file.read(size)
