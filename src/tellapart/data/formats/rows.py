"""Rows of tables: which columns hold what, and reading and writing comma-separated text."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.captions import parse_json, read_text, require_id, texts
from tellapart.data.dataset import Example
from tellapart.data.gathered import GatheredCaptions
from tellapart.errors import UsageError, quoted
from tellapart.files import write_text
from tellapart.packed import TextLists

IMAGE_ID = "image_id"
IMAGE_COLUMNS = (
    *("file_name", "filepath", "filename", "image", "image_path", "path", "file", "image_name", "img"),
    *("video", "video_path", "clip"),
    *("url", "image_url", "img_url", "image_link"),
    *("image_bytes", "bytes", "jpg", "png"),
)
"""Usual names of the column with the image: its path, its address or its bytes."""

CAPTION_COLUMNS = ("text", "caption", "captions", "prompt", "title", "sentences", "comment")

Row = dict[str, Any]


def find_column(columns: Iterable[str], known: Sequence[str]) -> str | None:
    """The column of the first known name that is there, in small or capital letters; None without any."""
    there = list(columns)
    if (exact := next((name for name in known if name in there), None)) is not None:
        return exact
    spelt = {str(name).lower(): name for name in there}
    return next((spelt[name] for name in known if name in spelt), None)


def choose_column(
    columns: Iterable[str], wanted: str | None, known: Sequence[str], option: str, path: Path | str
) -> str:
    """The column that was asked for, else the first of the known ones.

    Args:
        columns: the columns there are.
        wanted: the one that was asked for.
        known: usual names, the first preferred.
        option: that names a column, for messages.
        path: the table, or its row, for messages.

    Raises:
        UsageError: there is no such column.
    """
    there = list(columns)
    chosen = find_column(there, known) if wanted is None else wanted
    if chosen is None:
        raise UsageError(f"{path} has none of the columns {_listed(known)}, only {_listed(there)}: give {option}.")
    if chosen not in there:
        raise UsageError(f"{path} has no column {quoted(chosen)}, only {_listed(there)}: name one of these.")
    return chosen


_MOST_LISTED = 6


def _listed(columns: Sequence[str]) -> str:
    """Names of columns for a message; a table may have thousands."""
    shown = [name if len(name) <= 20 else quoted(name) for name in map(str, columns[:_MOST_LISTED])]
    more = len(columns) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def choose_captions(columns: Iterable[str], wanted: str | None, path: Path, *, needed: bool) -> str | None:
    """The column of the captions; None where there is none and none is needed.

    Args:
        columns: the columns there are.
        wanted: the one that was asked for.
        path: the table, for messages.
        needed: whether the captions are what the table is read for.

    Raises:
        UsageError: the column that was asked for is missing, or captions are needed and there is none.
    """
    there = list(columns)
    if wanted is None and not needed:
        return find_column(there, CAPTION_COLUMNS)
    return choose_column(there, wanted, CAPTION_COLUMNS, "caption_column", path)


def id_cell(row: Mapping[str, Any], wanted: str | None, path: Path, where: str) -> Any:
    """The id in a row: that of the column asked for, else of ``image_id``, if there is one.

    Raises:
        UsageError: the column that was asked for is missing, or empty.
    """
    if wanted is None:
        return row.get(IMAGE_ID)
    if wanted not in row:
        raise UsageError(f"{path} has no column {wanted!r}, only {', '.join(map(str, row))}: name one of these.")
    if row[wanted] in (None, ""):
        raise UsageError(f"{path}, {where}: {wanted!r} is empty: give the image an id.")
    return row[wanted]


def caption_cell(value: Any, path: Path, where: str) -> tuple[str, ...]:
    """The captions of a cell, which holds one, a list, or none.

    Raises:
        UsageError: one is not a string.
    """
    return () if value is None else texts(value, path, where)


class Gathered:
    """Rows about images, several of which may be about one: its captions add up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gathered = GatheredCaptions()
        self._ids: list[str | None] = []
        self._numbered: bool | None = None

    @property
    def names(self) -> Collection[str]:
        """What the images are known by, in the order of their first rows."""
        return self._gathered.places.keys()

    def ids(self) -> Iterator[str | None]:
        """The id of each image, None where it has none."""
        return iter(self._ids)

    def captions(self) -> TextLists:
        """The captions of each image; nothing can be added afterwards."""
        return self._gathered.packed()

    def items(self) -> Iterator[tuple[str, list[str]]]:
        """Images and their captions; nothing can be added afterwards."""
        return zip(self.names, self.captions(), strict=True)

    def key(self, image_id: Any, number: int, where: str) -> str:
        """What an image without a path is known by: its id, or its number where no row has an id.

        Raises:
            UsageError: some rows have ids and others none, whose numbers could be the ids of other images.
        """
        numbered = image_id is None
        if self._numbered not in (None, numbered):
            what = "no id" if numbered else f"the id {image_id!r}"
            raise UsageError(
                f"{self.path}: {where} has {what}, unlike rows before it: give every image an id, or none."
            )
        self._numbered = numbered
        return str(number if numbered else image_id)

    def add(self, image: str, captions: Iterable[str], image_id: Any, where: str) -> None:
        """Add the captions of a row.

        Raises:
            UsageError: the image has another id in another row, or its id is neither text nor a number.
        """
        self._gathered.add(image, captions)
        place = self._gathered.places[image]
        if place == len(self._ids):
            self._ids.append(None)
        if image_id is None:
            return
        require_id(image_id, self.path, where)
        known = self._ids[place]
        if known is None:
            self._ids[place] = str(image_id)
        elif known != str(image_id):
            raise UsageError(
                f"{self.path}: {where} gives {image} the id {image_id!r}, but it has {known!r}: correct one."
            )


def delimited_rows(path: Path, delimiters: str) -> Iterator[tuple[int, Row]]:
    """``(line, row)`` of a text table with a heading, read row by row; a cell that a short row lacks is None.

    Args:
        path: the file.
        delimiters: those it may have; the first that gives a heading with an image's column is taken, else the first.

    Raises:
        UsageError: the file is empty, or a row is broken; the sentence names the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = delimiter_of(_first_line(file), delimiters)
            file.seek(0)
            yield from _cut_rows(path, csv.reader(file, delimiter=delimiter, strict=True))
    except UnicodeDecodeError:
        read_text(path)  # raises with the line
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from error


def _first_line(lines: Iterable[str]) -> str:
    return next((line for line in lines if line.strip()), "")


def _cut_rows(path: Path, reader: Any) -> Iterator[tuple[int, Row]]:
    heading: list[str] | None = None
    try:
        for row in reader:
            if not any(row):  # also what spreadsheets leave below a table: ,,,
                continue
            if heading is None:
                heading = [name.strip() for name in row]
                _require_distinct(heading, path)
                continue
            if len(row) > len(heading):
                raise UsageError(
                    f"{path}, line {reader.line_num}: {len(row)} cells under a heading of {len(heading)}: "
                    "put cells with the separator in them in quotes."
                )
            yield reader.line_num, dict(zip(heading, [*row, *[None] * (len(heading) - len(row))], strict=True))
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: not a valid table ({error}): repair its quotes.") from error
    if heading is None:
        raise UsageError(f"{path} is empty: it needs a heading and rows.")


def _require_distinct(heading: list[str], path: Path) -> None:
    twice = next((name for name in heading if name and heading.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path} has two columns {twice!r}, of which one would be lost: rename one.")


def json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """``(line, value)`` of a file with a JSON value per line, read line by line; blank lines are skipped.

    Raises:
        UsageError: it cannot be read, or a line is not JSON; the sentence names the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, parse_json(line.rstrip("\n"), path, line=number)
    except UnicodeDecodeError:
        read_text(path)  # raises with the line
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from error


def json_objects(path: Path) -> Iterator[tuple[str, Row]]:
    """The objects of a file with one per line, each with what messages call it.

    Raises:
        UsageError: as ``json_rows``, and where a line holds something else.
    """
    for number, row in json_rows(path):
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number}: {str(row)[:80]} is not an object: write one object per line.")
        yield f"line {number}", row


def delimiter_of(text: str, delimiters: str) -> str:
    """The delimiter that cuts the first line into names of which one is an image's column, else the first that occurs."""
    line = text.lstrip("\n").split("\n", 1)[0]
    for delimiter in delimiters:
        names = [name.strip().strip('"') for name in line.split(delimiter)]
        if len(names) > 1 and find_column(names, IMAGE_COLUMNS) is not None:
            return delimiter
    return next((delimiter for delimiter in delimiters if delimiter in line), delimiters[0])


def caption_rows(example: Example, image: str) -> Iterator[list[str]]:
    """A row per caption: image, id, caption; an image without captions has a row that ends before."""
    if not example.references:
        yield [image, example.id]
    for caption in example.references:
        if len(caption) > csv.field_size_limit():
            raise UsageError(
                f"a caption of image {example.id!r} has {len(caption)} characters, which readers of csv refuse: "
                "convert to folder or coco."
            )
        yield [image, example.id, caption]


def write_delimited(path: Path, heading: Sequence[str], rows: Iterable[Sequence[str]], *, delimiter: str) -> None:
    """A text table in which every cell is in quotes, so that line breaks and spaces survive every reader."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    write_text(path, buffer.getvalue())
