"""JSON files that are mostly lists of flat records: read piece by piece, and kept as columns.

A million annotations of COCO take 0.6 GB as dictionaries and 0.1 GB as columns.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Collection, Iterator, Sequence
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tellapart.packed import Numbers, Texts

_PIECE = 1 << 20
"""Bytes that are read at once."""
_TOGETHER = 4096
"""Records that become columns together."""
_MOST_KEYS = 100
"""Keys of an object that is still taken for a file of records, and not for one of ids."""

Record = dict[str, Any]


class Records(Sequence[Record]):
    """Records that are made dictionaries again when they are asked for.

    Args:
        parts: ``_TOGETHER`` records each; the last may have fewer.
        count: of all of them.
    """

    def __init__(self, parts: Sequence[_Part], count: int) -> None:
        self._parts, self._count = parts, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        part, place = divmod(range(self._count)[index], _TOGETHER)
        return self._parts[part][place]

    def __iter__(self) -> Iterator[Record]:
        for part in self._parts:
            yield from part

    def __repr__(self) -> str:
        return repr(list(self))


class _Columns(Sequence[Record]):
    """Some records with the same keys.

    Args:
        keys: in their order.
        columns: of values.
    """

    def __init__(self, keys: Sequence[str], columns: Sequence[Sequence[Any]]) -> None:
        self._keys, self._columns = keys, columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return {key: column[index] for key, column in zip(self._keys, self._columns, strict=True)}

    def __iter__(self) -> Iterator[Record]:
        for values in zip(*self._columns, strict=True):
            yield dict(zip(self._keys, values, strict=True))


_Part = list[Any] | _Columns


def records_of(path: Path) -> Records | None:
    """The records of a file that is a list of them; None where it is anything else, or is broken."""
    return _read(path, lambda reader: _list(reader) if reader.next() == "[" else None)


def object_of(path: Path, lists: Collection[str]) -> dict[str, Any] | None:
    """A file that is an object, of which some members are lists of records; None where it is anything else, or is broken.

    Args:
        path: the file.
        lists: keys of the members that are lists of flat records, unless empty; they become ``Records``.
    """
    return _read(path, lambda reader: _object(reader, lists) if reader.next() == "{" else None)


def _read(path: Path, read: Any) -> Any:
    try:
        with path.open("rb") as file:
            reader = _Reader(file)
            found = read(reader)
            return found if reader.next() == "" else None
    except (OSError, ValueError, RecursionError):
        return None


class _Reader:
    """Goes through the text of a file."""

    _space = re.compile(r"[ \t\n\r]*").match

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decode = file, getincrementaldecoder("utf-8-sig")().decode
        self._scan = JSONDecoder().raw_decode
        self._text, self._at, self._ended = "", 0, False

    def next(self) -> str:
        """The next sign except spaces; "" at the end."""
        while True:
            self._at = self._space(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing, too
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more(_PIECE)

    def take(self) -> str:
        """The same, and go behind it."""
        sign = self.next()
        self._at += 1
        return sign

    def value(self) -> Any:
        """The value that is next.

        Raises:
            ValueError: it is not JSON.
        """
        self.next()
        more = _PIECE
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except JSONDecodeError:  # or cut off
                if self._ended:
                    raise
            else:
                if end < len(self._text) or self._ended:  # else a number may go on
                    self._at = end
                    return value
            self._more(more)
            more *= 2

    def _more(self, count: int) -> None:
        data = self._file.read(count)
        self._ended = not data
        self._text = self._text[self._at :] + self._decode(data, self._ended)
        self._at = 0


def _object(reader: _Reader, lists: Collection[str]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    sign = reader.take()
    while sign != "}":
        key = reader.value()
        if not isinstance(key, str) or reader.take() != ":" or len(found) == _MOST_KEYS:
            return None
        packs = key in lists and reader.next() == "["
        found[key] = _list(reader) if packs else reader.value()
        if packs and found[key] is None:
            return None
        sign = reader.take()
        if sign not in (",", "}"):
            return None
    return found


def _list(reader: _Reader) -> Records | None:
    """A list of at least one flat record; None where one is anything else."""
    parts: list[_Part] = []
    some: list[Record] = []
    count = 0
    sign = reader.take()
    while sign != "]":
        record = reader.value()  # an empty list raises here, too
        if not _is_flat(record):
            return None
        some.append(record)
        count += 1
        if len(some) == _TOGETHER:
            parts.append(_packed(some))
            some = []
        sign = reader.take()
        if sign not in (",", "]"):
            return None
    return Records([*parts, _packed(some)], count)


def _is_flat(record: Any) -> bool:
    return isinstance(record, dict) and not any(isinstance(value, dict | list) for value in record.values())


def _packed(records: list[Record]) -> _Part:
    keys = list(records[0]) if records else []
    if not keys or any(list(record) != keys for record in records):
        return records
    return _Columns(keys, [_column([record[key] for record in records]) for key in keys])


def _column(values: list[Any]) -> Sequence[Any]:
    kinds = set(map(type, values))
    if kinds == {str}:
        return Texts.of(values)
    if kinds == {int}:
        try:
            return Numbers(np.array(values, np.int64))
        except OverflowError:
            return values
    return values
