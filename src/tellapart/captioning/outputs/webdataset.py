"""Captions in WebDataset shards, with the images they are of."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import tarfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path, PurePosixPath
from typing import Any

from tellapart.captioning.outputs.base import Output, record
from tellapart.captioning.records import Caption, Item, Row
from tellapart.data.formats.carry import suffix_of
from tellapart.data.images import ImageError, PackedImage
from tellapart.data.tars import is_tar, members_within, reading_tar
from tellapart.errors import UsageError
from tellapart.files import REVIEW, beside, remove_half_written, write_text

logger = logging.getLogger(__name__)

IMAGES_A_SHARD = 1000
OF_CAPTIONS = frozenset(("captions", "text", "score", "match", "margin", "rival", "flags", "candidates"))
"""Fields of an earlier caption in a sample's .json."""
TEXTS = (".txt", ".caption", ".json")
"""Endings of what is rewritten for a captioned sample."""
Members = Iterable[tuple[str, bytes]]


@dataclass(frozen=True)
class _Shard:
    """One file to be written: its name, what decides its content, and its members when they are asked for."""

    name: str
    key: str
    members: Callable[[], Members]


class WebDataset(Output):
    """A folder of ``.tar`` shards.

    Shards become shards of the same names with the same keys and the bytes of every member, but ``.txt`` holds the new
    caption, ``.json`` its row added to the existing fields, and there is no ``.caption``. Images from elsewhere go into
    ``00000.tar``, ``00001.tar``, ... with 1000 each, under keys of nine digits. A shard is written whole or not at all;
    one that was written before with the same captions is not written again.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.review = place / f"captions{REVIEW}"
        self._left_out = 0

    def exists(self) -> bool:
        """Whether the folder holds shards."""
        return bool(self._held())

    def check(self, items: Sequence[Item]) -> None:
        """Raise if two shards of the input have the same name, or the output is the input.

        Raises:
            UsageError: naming the shards.
        """
        if self.place.exists() and not self.place.is_dir():
            raise UsageError(f"--output {self.place} is a file: name a folder for the shards.")
        named: dict[str, Path] = {}
        for item in items:
            if (archive := _archive(item)) is None:
                continue
            other = named.setdefault(archive.name, archive)
            if other != archive:
                raise UsageError(f"{other} and {archive} have the same name: caption them into different folders.")
            if archive.parent.resolve() == self.place.resolve():
                raise UsageError(f"--output {self.place} is the folder of the input: name another one.")

    def clean(self, items: Sequence[Item]) -> None:
        """Remove shards and lists that a killed run left half-written."""
        shards = {f"{number:05}.tar" for number in range(len(items) // IMAGES_A_SHARD + 1)}
        shards |= {archive.name for item in items if (archive := _archive(item)) is not None}
        remove_half_written(self.place, shards | {self.review.name, self.page.name})

    def assemble(self, rows: Sequence[Row]) -> int:
        """Write the shards that are not there yet; those that a larger collection left are named, not removed."""
        written = set()
        self._left_out = 0
        for shard in self._shards(rows):
            written.add(shard.name)
            target, mark = self.place / shard.name, self.work / f"{shard.name}.written"
            if target.is_file() and mark.is_file() and mark.read_text(encoding="utf-8") == shard.key:
                continue
            mark.unlink(missing_ok=True)
            left_out = self._left_out
            with beside(target) as temporary, tarfile.open(temporary, "w") as tar:
                for name, data in shard.members():
                    add_member(tar, name, data)
            if self._left_out == left_out:
                write_text(mark, shard.key)
        left = [name for name in self._held() if name not in written]
        if left:
            logger.warning(
                "%s also holds %s, which this run did not write: remove what is old.", self.place, ", ".join(left)
            )
        return len(rows) - self._left_out

    def _held(self) -> list[str]:
        """Names of the shards in the folder."""
        return sorted(path.name for path in self.place.glob("*") if is_tar(path.name))

    def _shards(self, rows: Sequence[Row]) -> Iterator[_Shard]:
        packed: dict[Path, list[Row]] = {}
        loose: list[Row] = []
        for row in rows:
            archive = _archive(row[0])
            (loose if archive is None else packed.setdefault(archive, [])).append(row)
        for archive, some in packed.items():
            yield _Shard(archive.name, _key(some), lambda archive=archive, some=some: self._recaptioned(archive, some))  # type: ignore[misc]
        number = 0
        for first in range(0, len(loose), IMAGES_A_SHARD):
            while f"{number:05}.tar" in {archive.name.lower() for archive in packed}:
                number += 1
            some = loose[first : first + IMAGES_A_SHARD]
            yield _Shard(f"{number:05}.tar", _key(some), lambda first=first, some=some: self._new(first, some))  # type: ignore[misc]
            number += 1

    def _new(self, first: int, rows: Sequence[Row]) -> Members:
        for index, (item, caption) in enumerate(rows, start=first):
            try:
                data = item.image.read()
            except ImageError as error:  # gone since it was captioned
                logger.warning("%s It is left out of the shard.", error)
                self._left_out += 1
                continue
            key = f"{index:09}"
            yield f"{key}{ending_of(item, data)}", data
            yield from caption_members(key, self._row(item, caption, key))

    def _recaptioned(self, archive: Path, rows: Sequence[Row]) -> Members:
        """The members of a shard in their order, where each captioned sample has the new caption."""
        by_place = {item.image.offset: (item, caption) for item, caption in rows if isinstance(item.image, PackedImage)}
        with archive.open("rb") as file, reading_tar(file) as tar:
            members = [member for member in members_within(tar) if member.isfile()]
            samples = _samples(members, by_place)
            keys = {member.offset_data: sample for member, sample in zip(members, samples, strict=True)}
            rows_of = {keys[place]: row for place, row in by_place.items() if place in keys}
            if gone := sum(place not in keys for place in by_place):
                logger.warning("%s has changed since it was captioned: %d captions are left out.", archive, gone)
                self._left_out += gone
            left = dict(rows_of)
            before: dict[_Sample, dict[str, Any]] = {}
            for member, sample in zip(members, samples, strict=True):
                if sample in rows_of and split_name(member.name)[1] == ".json":
                    before[sample] = json_object(_data(tar, member))
            for member, sample, follows in zip(members, samples, [*samples[1:], None], strict=True):
                if sample not in rows_of or split_name(member.name)[1] not in TEXTS:
                    yield member.name, _data(tar, member)
                if sample in left and follows != sample:
                    (item, caption), key = left.pop(sample), sample[0]
                    yield from caption_members(key, added(before.get(sample, {}), self._row(item, caption, key)))

    def _row(self, item: Item, caption: Caption, key: str) -> dict[str, Any]:
        row = record(item, caption, self.place)
        return {"key": key, "image_id": row.pop("id"), **row}


_Sample = tuple[str, int]
"""The key of a sample, and of several with one key its place among them."""


def _samples(members: Sequence[tarfile.TarInfo], captioned: Container[int]) -> list[_Sample]:
    """Of each member the sample that it belongs to: by its key, and where captioned images share one, by the run of members.

    Args:
        members: of an archive.
        captioned: where in the archive the captioned images begin.
    """
    keys = [split_name(member.name)[0] for member in members]
    often = Counter(key for key, member in zip(keys, members, strict=True) if member.offset_data in captioned)
    runs = accumulate((key != before for key, before in zip(keys, [None, *keys], strict=False)), initial=0)
    return [(key, run if often[key] > 1 else 0) for key, run in zip(keys, islice(runs, 1, None), strict=True)]


def _archive(item: Item) -> Path | None:
    """The shard an image comes from, if its samples can be carried over."""
    image = item.image
    return image.archive if isinstance(image, PackedImage) and is_tar(image.archive.name) else None


def _key(rows: Sequence[Row]) -> str:
    """A hash of the captions and their order."""
    told = json.dumps([[item.id, caption.as_json()] for item, caption in rows])
    return hashlib.sha256(told.encode()).hexdigest()


def ending_of(item: Item, data: bytes) -> str:
    """The ending of an image's member: that of a known kind of image, by its name or its content, else that of its name."""
    try:
        return suffix_of(item.image, data).lower()
    except UsageError:
        return PurePosixPath(item.relative).suffix.lower() or ".jpg"


def split_name(name: str) -> tuple[str, str]:
    """A member's key and ending, as WebDataset cuts them: at the first point of the file's name."""
    folder, slash, file = name.rpartition("/")
    stem, point, ending = file.partition(".")
    return f"{folder}{slash}{stem}", f"{point}{ending}".lower()


def added(before: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A sample's .json with a caption's row. An id that was a number stays one, for those who join tables by it."""
    kept = {name: value for name, value in before.items() if name not in OF_CAPTIONS}
    same = {"image_id": kept["image_id"]} if str(kept.get("image_id")) == row["image_id"] else {}
    return kept | row | same


def caption_members(key: str, row: dict[str, Any]) -> Members:
    """The ``.txt`` and ``.json`` of a sample."""
    yield f"{key}.txt", row["caption"].encode(errors="backslashreplace")
    yield f"{key}.json", json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace")


def json_object(data: bytes) -> dict[str, Any]:
    """A sample's JSON, if it is an object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _data(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None, "only files are asked for"
    return file.read()


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Append a file to an archive."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
