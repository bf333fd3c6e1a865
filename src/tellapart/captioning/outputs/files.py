"""Captions in one file, written when all are there: JSON lines, CSV, COCO results, Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from tellapart.captioning.outputs.base import Output, image_ids, record
from tellapart.captioning.records import Item, Row
from tellapart.errors import UsageError
from tellapart.files import beside, write_json, write_text


class _OneFile(Output):
    def check(self, items: Sequence[Item]) -> None:
        """Raise if the file's place is taken by a folder.

        Raises:
            UsageError: naming it.
        """
        if self.place.is_dir():
            raise UsageError(f"--output {self.place} is a folder: name a file in it.")


class JsonLines(_OneFile):
    """One object per line: ``id``, ``file_name``, ``caption``, and where known ``score``, ``match``, ``margin``,
    ``rival``, ``flags``, ``candidates``."""

    def assemble(self, rows: Sequence[Row]) -> int:
        """Write the file."""
        lines = (json.dumps(record(item, caption, self.place.parent), ensure_ascii=False) for item, caption in rows)
        write_text(self.place, "".join(line + "\n" for line in lines))
        return len(rows)


class Csv(_OneFile):
    """A table for spreadsheets: the columns of ``JsonLines`` but ``candidates``, with spaces between flags."""

    def assemble(self, rows: Sequence[Row]) -> int:
        """Write the file."""
        records = [record(item, caption, self.place.parent) for item, caption in rows]
        text = io.StringIO()
        columns = table_schema(rivals=any("rival" in row for row in records), candidates=False).names
        how: dict[str, Any] = {"extrasaction": "ignore", "lineterminator": "\n"}
        writer = csv.DictWriter(text, columns, **how)
        quoting = csv.DictWriter(text, columns, quoting=csv.QUOTE_ALL, **how)
        writer.writeheader()
        for row in records:
            cells = row | {"flags": " ".join(row.get("flags", ()))}
            # A carriage return in a name ends a row for readers, and is quoted only where lines end in one.
            (quoting if any("\r" in str(cell) for cell in cells.values()) else writer).writerow(cells)
        write_text(self.place, text.getvalue())
        return len(rows)


class CocoResults(_OneFile):
    """COCO's results format: a list of ``image_id`` and ``caption``."""

    def assemble(self, rows: Sequence[Row]) -> int:
        """Write the file."""
        ids = image_ids([item for item, _ in rows])
        pairs = zip(ids, rows, strict=True)
        write_json(self.place, [{"image_id": name, "caption": caption.caption} for name, (_, caption) in pairs])
        return len(rows)


class Parquet(_OneFile):
    """A table with the columns of ``JsonLines``."""

    def assemble(self, rows: Sequence[Row]) -> int:
        """Write the file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = table_schema(
            rivals=any(caption.rival for _, caption in rows), candidates=any(caption.candidates for _, caption in rows)
        )
        values = [{"flags": [], **record(item, caption, self.place.parent)} for item, caption in rows]
        with beside(self.place) as temporary:
            pq.write_table(pa.Table.from_pylist(values, schema=schema), temporary)
        return len(rows)


def table_schema(*, rivals: bool, candidates: bool) -> Any:
    """The Arrow schema of a table of captions.

    Args:
        rivals: whether there are columns of the nearest look-alike.
        candidates: whether there is a column of all captions that were drawn.
    """
    import pyarrow as pa

    candidate = pa.struct([("caption", pa.string()), ("score", pa.float64())])
    kinds = {"id": pa.string(), "file_name": pa.string(), "caption": pa.string(), "score": pa.float64()}
    kinds |= {"match": pa.float64(), "flags": pa.list_(pa.string())}
    kinds |= {"margin": pa.float64(), "rival": pa.string()} if rivals else {}
    kinds |= {"candidates": pa.list_(candidate)} if candidates else {}
    return pa.schema(list(kinds.items()))
