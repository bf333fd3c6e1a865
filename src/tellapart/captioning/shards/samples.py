"""The samples of a shard, one after another: of a tar in WebDataset's manner, or of the rows of a Parquet file."""

from __future__ import annotations

import tarfile
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from tellapart.captioning.outputs.webdataset import json_object, split_name
from tellapart.captioning.records import Item
from tellapart.data.captions import require_id
from tellapart.data.decoding import require_header
from tellapart.data.folder import is_image
from tellapart.data.formats.rows import IMAGE_COLUMNS, IMAGE_ID, choose_column, id_cell
from tellapart.data.formats.webdataset import no_image
from tellapart.data.images import EncodedImage, ImageError, ImageFile, ImageSource, printable
from tellapart.data.parquet import BYTES, IMAGES, PATH, ROWS, Columns, columns_in, opened
from tellapart.data.remote.addresses import STORES, file_of, is_web, require_no_password, scheme_of
from tellapart.data.remote.folders import reading_in_place
from tellapart.data.remote.images import AT_ONCE, RemoteImage, UrlImage
from tellapart.data.remote.stores import StoredImage
from tellapart.data.tars import is_tar, members_within, reading_tar
from tellapart.errors import UsageError

ENDINGS = (".tar", ".parquet")
"""Files that are shards."""

Member = tuple[str, bytes]


class UnusableError(UsageError):
    """A shard cannot be captioned, however often that is tried."""


class DamagedError(UsageError):
    """A tar is cut or damaged; what lies before the damage has been given."""


@dataclass(frozen=True)
class Sample:
    """One sample of a shard.

    Args:
        key: what it is known by in the shard.
        item: its image; None where there is none that can be captioned.
        members: the files of a tar's sample, in their order.
        problem: why it has no image.
    """

    key: str
    item: Item | None
    members: tuple[Member, ...] = ()
    problem: str | None = None

    @property
    def size(self) -> int:
        """Bytes that it holds in memory."""
        image = self.item.image if self.item is not None else None
        held = sum(len(data) for _, data in self.members)
        return held or (len(image.data) if isinstance(image, EncodedImage) else 0)


@dataclass(frozen=True)
class Reading:
    """How shards are read.

    Args:
        image_column: column of Parquet files with the image; None looks for a usual name.
        id_column: column with its id; None takes ``image_id``, else the row's number.
        allow_private: whether addresses in a table may lead to hosts of a private network.
    """

    image_column: str | None = None
    id_column: str | None = None
    allow_private: bool = False

    def samples(self, address: str) -> Generator[Sample, None, None]:
        """The samples of a shard in its order. The shard is read as the samples are taken, and only once.

        Args:
            address: of a ``.tar`` or ``.parquet`` file.

        Raises:
            DamagedError: a tar is cut or damaged, after the samples before the damage.
            UnusableError: a table lacks a column.
            UsageError: the shard cannot be read.
            OSError: the same, on this machine.
        """
        with reading_in_place(address) as file:
            found = tar_samples(file, address) if is_tar(address) else self._rows(file, address)
            yield from unique(found, address)

    def require_columns(self, shards: Sequence[str]) -> None:
        """Refuse a column that was named and is in neither the first nor the last table: its name is misspelt.

        Args:
            shards: addresses. Those that are not tables, or cannot be read, are passed over.

        Raises:
            UnusableError: with the columns that there are.
        """
        tables = [shard for shard in shards if not is_tar(shard)]
        if self.image_column is None and self.id_column is None:
            return
        lacking: list[UnusableError] = []
        for address in dict.fromkeys([*tables[:1], *tables[-1:]]):
            try:
                with reading_in_place(address) as file, opened(file, address) as table:
                    self._columns(table, address)
                return
            except UnusableError as error:
                lacking.append(error)
            except (UsageError, OSError):
                return
        if lacking:
            raise lacking[0]

    def _rows(self, file: BinaryIO, address: str) -> Generator[Sample, None, None]:
        with opened(file, address) as table:
            yield from self._of_table(table, address)

    def _columns(self, table: Any, address: str) -> tuple[str, Columns]:
        """The column of the images, and all of them."""
        columns, path = columns_in(table.schema_arrow), Path(file_of(address))
        known = [*sorted(columns.structs, key=columns.names.index), *IMAGE_COLUMNS]
        try:
            image = choose_column(columns.names, self.image_column, known, "image_column", path)
            if self.id_column is not None:
                choose_column(columns.names, self.id_column, (), "id_column", path)
        except UsageError as error:
            raise UnusableError(str(error)) from error
        return image, columns

    def _of_table(self, table: Any, address: str) -> Generator[Sample, None, None]:
        image, columns = self._columns(table, address)
        used = list(dict.fromkeys(name for name in (image, self.id_column, IMAGE_ID) if name in columns.names))
        number, rows = 0, IMAGES if image in columns.images else ROWS
        for group in range(table.num_row_groups):
            for batch in table.iter_batches(rows, row_groups=[group], columns=used):
                for row in batch.to_pylist():
                    yield self._of_row(row, image, columns, address, number)
                    number += 1

    def _of_row(self, row: dict[str, Any], image: str, columns: Columns, address: str, number: int) -> Sample:
        where, key = f"row {number + 1}", f"{number:09d}"
        name = f"{Path(file_of(address)).stem}/{key}"
        try:
            given = id_cell(row, self.id_column, Path(file_of(address)), where)
            if given is not None:
                require_id(given, file_of(address), where)
            source, path = self._image(row[image], image in columns.structs, address, where, name)
        except UsageError as error:
            return Sample(key, None, problem=str(error))
        known = given if given is not None else path if image not in columns.images else None
        return Sample(key, Item(name if known is None else str(known), source, file_of(path or "") or f"{key}.jpg"))

    def _image(self, value: Any, struct: bool, address: str, where: str, name: str) -> tuple[ImageSource, str | None]:
        data, path = (value or {}).get(BYTES) if struct else value, (value or {}).get(PATH) if struct else None
        if isinstance(data, bytes) and data:
            return EncodedImage(data, printable(f"{address}/{path or name.rpartition('/')[2]}")), path
        cell = path if struct else data
        if not isinstance(cell, str) or not cell:
            raise ImageError(f"{address}, {where} has no image: remove the row, or give it an image.")
        return self._at(cell, address), cell

    def _at(self, cell: str, address: str) -> ImageSource:
        """The image that a cell names: a path below the table's folder, or an address."""
        base = address.rpartition("/")[0]
        if scheme_of(cell) is None and scheme_of(address) is None:
            return ImageFile(Path(base or ".") / cell)
        url = cell if scheme_of(cell) is not None else f"{base}/{cell}"
        require_no_password(url)
        if is_web(url):
            return UrlImage(url, self.allow_private)
        if scheme_of(cell) is not None and scheme_of(cell) not in STORES:
            raise ImageError(f"{address} names the image {cell[:80]!r}: name paths, or addresses of http or a store.")
        return StoredImage(url)


def tar_samples(file: BinaryIO, name: str) -> Generator[Sample, None, None]:
    """The samples of an uncompressed tar: members that follow each other and share their name up to the first dot.

    Args:
        file: the open tar.
        name: what messages call it.

    Raises:
        DamagedError: it is cut or damaged, after the samples before the damage.
    """
    key, members = "", list[Member]()
    try:
        for member, data in _members(file):
            whole = split_name(member)[0]
            if whole != key and members:
                yield sample_of(name, key, members)
                members = []
            key = whole
            members.append((member, data))
    except (tarfile.TarError, EOFError) as error:
        if members:
            yield sample_of(name, key, members)
        raise DamagedError(
            f"{name} is not a whole tar archive ({error}): unpack it if it is compressed, or get it again."
        ) from error
    if members:
        yield sample_of(name, key, members)


def _members(file: BinaryIO) -> Iterator[Member]:
    file.seek(0)
    with reading_tar(file) as archive:
        for member in members_within(archive):
            if not member.isfile() or member.name.rpartition("/")[2].startswith("."):
                continue
            data = archive.extractfile(member)
            yield member.name, b"" if data is None else data.read()


def sample_of(shard: str, key: str, members: Sequence[Member]) -> Sample:
    """The sample of some members of a tar, by the ``image_id`` of its ``.json``, else by its key.

    One without exactly one image, or whose ``image_id`` is neither text nor an integer, has a problem.
    """
    pictures = [(name, data) for name, data in members if is_image(name) and split_name(name)[1].count(".") == 1]
    everything = tuple(members)
    if len(pictures) != 1:
        what = " and ".join(printable(name) for name, _ in pictures) or no_image(printable(name) for name, _ in members)
        return Sample(
            key, None, everything, f"{shard}: sample {printable(key)!r} has {what}, not one image: correct it."
        )
    (name, data) = pictures[0]
    known = key.removeprefix("./").lstrip("/")
    for member, text in members:
        if split_name(member)[1] == ".json":
            known = json_object(text).get(IMAGE_ID, known)
    if isinstance(known, bool) or not isinstance(known, int | str) or known == "":
        return Sample(
            key, None, everything, f"{shard}: 'image_id' of sample {printable(key)!r} is {known!r}: correct it."
        )
    shown = printable(str(known))
    return Sample(key, Item(shown, EncodedImage(data, printable(f"{shard}/{name}")), printable(name)), everything)


def unique(samples: Iterator[Sample], shard: str) -> Generator[Sample, None, None]:
    """The samples, where one whose id occurred before has a problem."""
    seen = set[str]()
    for sample in samples:
        if sample.item is not None and sample.item.id in seen:
            problem = f"{shard}: the id {sample.item.id!r} occurs twice: give each image an id of its own."
            sample = replace(sample, item=None, problem=problem)
        elif sample.item is not None:
            seen.add(sample.item.id)
        yield sample


def windows(samples: Iterator[Sample], images: int, most_bytes: int) -> Generator[list[Sample], None, None]:
    """The samples in lists, each of at most ``images``, and closed when it holds more bytes than allowed.

    Images at addresses are fetched, several at once, and not kept on disk. The next list is read while one is in use.

    Args:
        samples: of a shard.
        images: samples in a list.
        most_bytes: bytes from which a list is closed.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="shard") as reader, ThreadPoolExecutor(AT_ONCE) as fetcher:

        def one() -> tuple[list[Sample], Exception | None]:
            window, error = _window(samples, images, most_bytes)
            return list(fetcher.map(_fetched, window)), error

        following = reader.submit(one)
        while True:
            window, error = following.result()
            if window and error is None:
                following = reader.submit(one)
            if window:
                yield window
            if error is not None:
                raise error
            if not window:
                return


def _window(samples: Iterator[Sample], images: int, most_bytes: int) -> tuple[list[Sample], Exception | None]:
    """The next samples, and the error that ended them, if one did."""
    window, held = list[Sample](), 0
    try:
        while len(window) < images and held < most_bytes and (sample := next(samples, None)) is not None:
            window.append(sample)
            held += sample.size
    except Exception as error:  # what was read before it counts
        return window, error
    return window, None


def _fetched(sample: Sample) -> Sample:
    """The sample with its image in memory, if that is at an address."""
    if sample.item is None or not isinstance(sample.item.image, RemoteImage):
        return sample
    image = sample.item.image
    try:
        data = image.fetch()
        require_header(data, image.name)
    except ImageError as error:
        return replace(sample, item=None, problem=str(error))
    return replace(sample, item=replace(sample.item, image=EncodedImage(data, image.name)))
