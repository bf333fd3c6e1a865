"""WebDataset's tar files, also as img2dataset writes them: ``key.jpg`` with ``key.txt``, ``key.caption``, ``key.json``."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from tellapart.data.captions import decoded, field, parse_json, require_id, require_unicode, texts
from tellapart.data.clips import in_archive
from tellapart.data.dataset import Example
from tellapart.data.folder import is_image
from tellapart.data.formats.base import Layout, Place
from tellapart.data.formats.carry import Carrier, suffix_of
from tellapart.data.formats.rows import CAPTION_COLUMNS
from tellapart.data.tars import is_tar, members_within, reading_tar
from tellapart.data.video import is_video
from tellapart.errors import UsageError
from tellapart.files import cache_dir, read_json, write_text

# What is in a tar of a WebDataset: found by reading its headers once, then remembered on disk.

VERSION = 2
"""Of the remembered lists; another reads the archives again."""

TEXTS = ("txt", "caption")


@dataclass(frozen=True)
class Sample:
    """One image of a tar.

    Args:
        id: ``image_id`` of its .json, else its key.
        member: the image's name in the archive.
        offset: where its bytes begin.
        size: how many there are.
        captions: unchanged.
    """

    id: str
    member: str
    offset: int
    size: int
    captions: tuple[str, ...]


def samples_of(path: Path, caption_column: str | None = None) -> list[Sample]:
    """The images of a tar in its order; known from an earlier reading if path, size, time and question are the same.

    Raises:
        UsageError: it is not a tar, is cut short, or a sample is broken; the sentence names the member.
    """
    stat = path.stat()
    known = json.dumps([VERSION, str(path.absolute()), stat.st_size, stat.st_mtime_ns, caption_column])
    remembered = cache_dir() / "webdataset" / f"{hashlib.sha256(known.encode()).hexdigest()}.json"
    try:
        rows = read_json(remembered)
        return [Sample(name, member, offset, size, tuple(captions)) for name, member, offset, size, captions in rows]
    except (OSError, ValueError, TypeError):  # not there, or damaged: read the archive
        pass
    samples = list(_read(path, caption_column))
    write_text(remembered, json.dumps([astuple(sample) for sample in samples]))
    return samples


def _read(path: Path, caption_column: str | None) -> Iterator[Sample]:
    with path.open("rb") as data:
        for key, members in _groups(path, data):
            yield _sample(path, data, key, members, caption_column)


def _groups(path: Path, data: BinaryIO) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Members that follow each other and share their name up to the first dot, by what comes after it."""
    key, members = "", dict[str, tarfile.TarInfo]()
    try:
        with reading_tar(data) as archive:
            for whole, ending, member in _members(path, archive):
                if whole != key and members:
                    yield key, members
                    members = {}
                key = whole
                if ending in members:
                    raise UsageError(f"{path} holds {member.name} twice for one key: remove one.")
                members[ending] = member
    except tarfile.TarError as error:
        raise UsageError(
            f"{path} is not a whole tar archive ({error}): unpack it if it is compressed, or get it again."
        ) from error
    if members:
        yield key, members


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Files that are not hidden, by their key (folder and name up to the first dot) and ending in lower case."""
    for member in members_within(archive):
        folder, _, name = member.name.rpartition("/")
        if not member.isfile() or name.startswith("."):
            continue
        require_unicode(member.name, path, f"the name of {member.name!r}")
        base, _, ending = name.partition(".")
        yield f"{folder}/{base}".removeprefix("./").lstrip("/"), ending.lower(), member


def _sample(
    path: Path, data: BinaryIO, key: str, members: dict[str, tarfile.TarInfo], caption_column: str | None
) -> Sample:
    single = {ending: member for ending, member in members.items() if "." not in ending}
    clips = [member for ending, member in single.items() if is_video(f"x.{ending}")]
    # of a clip with a still, as img2dataset's relatives write them, the clip is the example
    pictures = clips or [member for ending, member in single.items() if is_image(f"x.{ending}")]
    if len(pictures) != 1:
        what = " and ".join(member.name for member in pictures) or no_image(member.name for member in members.values())
        raise UsageError(f"{path}: sample {key!r} has {what}, not one image: correct the archive.")

    def read(ending: str) -> str:
        data.seek(members[ending].offset_data)
        return decoded(data.read(members[ending].size), f"{path}/{members[ending].name}")

    where = f"sample {key!r}"
    record = parse_json(read("json"), path / members["json"].name) if "json" in members else {}
    if not isinstance(record, dict):
        raise UsageError(f"{path}: the .json of {where} is {str(record)[:80]}, not an object: correct the archive.")
    captions = _captions_in(record, path, where, caption_column)
    if captions is None:
        captions = next(((read(ending),) for ending in TEXTS if ending in members), ())
    image_id = record.get("image_id", key)
    require_id(image_id, path, where)
    (picture,) = pictures
    return Sample(str(image_id), picture.name, picture.offset_data, picture.size, captions)


def no_image(names: Iterable[str]) -> str:
    """What a sample with these members has instead of an image, and the first picture whose key ended too early."""
    dotted = next((name for name in names if is_image(name) and name.rpartition("/")[2].count(".") > 1), None)
    return "no image" if dotted is None else f"no image (the key of {dotted} ends at its first dot)"


def _captions_in(record: dict[str, Any], path: Path, where: str, column: str | None) -> tuple[str, ...] | None:
    """The captions of a .json, or None if it has none."""
    if column is not None:
        value = field(record, column, path, where)
        return () if value is None else texts(value, path, where)
    for name in ("captions", *CAPTION_COLUMNS):
        if isinstance(record.get(name), str | list):
            return texts(record[name], path, where)
    return None


SHARD = 5000
"""Images in a shard that we write."""

_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


class WebDataset(Layout):
    """A folder of ``.tar`` files, one of them, or several named by a pattern (``{00000..00003}.tar``).

    An image's id is the ``image_id`` in its .json, which we write, else its key. Its captions are those of the .json, else
    the text of its .txt or .caption as one.
    """

    name = "webdataset"
    links = frozenset({"copy"})
    has_fields = True
    holds_images = True

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether there is a tar file; a folder must hold no images next to it."""
        if place.is_folder:
            return any(map(is_tar, place.names)) and not any(map(is_image, place.names))
        return is_tar(place.sample.name)

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is one."""
        if not any(map(is_tar, place.names if place.is_folder else [place.sample.name])):
            raise UsageError(f"{place.path} is not a .tar file, nor a folder of them, which format 'webdataset' needs.")

    @cached_property
    def shards(self) -> list[Path]:
        """The tar files, in order.

        Raises:
            UsageError: one that the pattern names does not exist.
        """
        if self.place.is_folder:
            return [self.place.path / name for name in self.place.names if is_tar(name)]
        shards = [Path(name) for name in self.place.listed]
        for shard in shards:
            if not shard.is_file():
                raise UsageError(f"{shard} does not exist: correct the pattern {self.place.given}, or get the file.")
        return shards

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All images, shard by shard."""
        return [
            Example(s.id, in_archive(shard, s.member, s.offset, s.size, self.place.sampling), s.captions)
            for shard in self.shards
            for s in samples_of(shard, self.place.caption_column)
        ]

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """``00000.tar`` and so on, with id and captions in a .json and the first caption in a .txt for other tools."""
        (examples,) = splits.values()
        plain = all(_KEY.fullmatch(example.id) for example in examples)
        numbered = iter(enumerate(examples))
        for shard in itertools.count():
            rows = list(itertools.islice(numbered, SHARD))
            if not rows:
                break
            with tarfile.open(folder / f"{shard:05d}.tar", "w") as archive:
                for number, example in rows:
                    _add(archive, example.id if plain else f"{number:09d}", example, images)


def _add(archive: tarfile.TarFile, key: str, example: Example, images: Carrier) -> None:
    record = {"image_id": example.id, "captions": list(example.references)}
    members = {
        suffix_of(example.image): images.read(example),
        ".txt": next(iter(example.references), "").encode(),
        ".json": json.dumps(record, ensure_ascii=False).encode(),
    }
    for ending, data in members.items():
        member = tarfile.TarInfo(key + ending)
        member.size, member.mode = len(data), 0o644
        archive.addfile(member, io.BytesIO(data))
