"""A shard of captions, written sample by sample: a tar, a Parquet file or JSON lines."""

from __future__ import annotations

import json
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tellapart.captioning.outputs.base import record
from tellapart.captioning.outputs.files import table_schema
from tellapart.captioning.outputs.webdataset import (
    TEXTS,
    add_member,
    added,
    caption_members,
    ending_of,
    json_object,
    split_name,
)
from tellapart.captioning.records import Caption
from tellapart.captioning.shards.samples import Sample

Told = tuple[Sample, Caption | None]
"""A sample, and its caption if it has one."""


class ShardWriter(ABC):
    """Writes a shard; to be used in a ``with`` block.

    Args:
        file: where.
        base: folder that the paths of images are relative to, where they are below it.
        candidates: whether rows hold all captions that were drawn.
    """

    ending: str

    def __init__(self, file: Path, base: Path, *, candidates: bool = False) -> None:
        self.file, self.base, self.candidates = file, base, candidates

    def __enter__(self) -> ShardWriter:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the file."""

    @abstractmethod
    def add(self, told: Sequence[Told]) -> None:
        """Append samples, in their order."""

    def _rows(self, told: Sequence[Told]) -> list[dict[str, Any]]:
        pairs = [(sample.item, caption) for sample, caption in told]
        return [record(item, caption, self.base) for item, caption in pairs if item is not None and caption is not None]


class TarWriter(ShardWriter):
    """A tar: the members of each sample, with the caption in ``.txt`` and its row added to ``.json``.

    A sample without a caption is carried over unchanged. A sample of a Parquet file becomes a new one, with its image.
    """

    ending = ".tar"

    def __init__(self, file: Path, base: Path, *, candidates: bool = False) -> None:
        super().__init__(file, base, candidates=candidates)
        self._tar = tarfile.open(file, "w")  # noqa: SIM115  # closed by __exit__

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the end of the archive."""
        self._tar.close()

    def add(self, told: Sequence[Told]) -> None:
        """Append samples."""
        for sample, caption in told:
            if sample.item is None or caption is None:
                members: list[tuple[str, bytes]] = list(sample.members)
            elif sample.members:
                members = [(name, data) for name, data in sample.members if split_name(name)[1] not in TEXTS]
                members += self._caption(sample, caption)
            else:
                data = sample.item.image.read()
                members = [(f"{sample.key}{ending_of(sample.item, data)}", data), *self._caption(sample, caption)]
            for name, data in members:
                add_member(self._tar, name, data)
            self._tar.members = []  # type: ignore[attr-defined]  # tarfile would keep them all

    def _caption(self, sample: Sample, caption: Caption) -> list[tuple[str, bytes]]:
        assert sample.item is not None
        row = record(sample.item, caption, self.base)
        row = {"key": sample.key, "image_id": row.pop("id"), **row}
        before = next((json_object(data) for name, data in sample.members if split_name(name)[1] == ".json"), {})
        return list(caption_members(sample.key, added(before, row)))


class LinesWriter(ShardWriter):
    """JSON lines, a row per caption."""

    ending = ".jsonl"

    def __init__(self, file: Path, base: Path, *, candidates: bool = False) -> None:
        super().__init__(file, base, candidates=candidates)
        self._text = file.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._text.close()

    def add(self, told: Sequence[Told]) -> None:
        """Append a line per captioned sample."""
        for row in self._rows(told):
            self._text.write(json.dumps(row, ensure_ascii=False) + "\n")


class ParquetWriter(ShardWriter):
    """A table, a row per caption."""

    ending = ".parquet"

    def __init__(self, file: Path, base: Path, *, candidates: bool = False) -> None:
        import pyarrow.parquet as pq

        super().__init__(file, base, candidates=candidates)
        self._schema = table_schema(rivals=False, candidates=candidates)
        self._table = pq.ParquetWriter(file, self._schema)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the footer."""
        self._table.close()

    def add(self, told: Sequence[Told]) -> None:
        """Append a row group."""
        import pyarrow as pa

        rows = [{"flags": [], **row} for row in self._rows(told)]
        if rows:
            self._table.write_table(pa.Table.from_pylist(rows, schema=self._schema))


WRITERS: dict[str, type[ShardWriter]] = {"webdataset": TarWriter, "jsonl": LinesWriter, "parquet": ParquetWriter}
"""Form of output -> what writes it."""
