"""WebDataset's tar files, also as img2dataset writes them: ``key.jpg`` with ``key.txt``, ``key.caption``, ``key.json``."""

from __future__ import annotations

import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tellapart.data.dataset import Example
from tellapart.data.folder import is_image
from tellapart.data.formats.base import Layout, Place
from tellapart.data.formats.carry import Carrier, suffix_of
from tellapart.data.formats.tar import samples_of
from tellapart.data.images import PackedImage
from tellapart.errors import UsageError

SHARD = 5000
"""Images in a shard that we write."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


class WebDataset(Layout):
    """A folder of ``.tar`` files, one of them, or several named by a pattern (``{00000..00003}.tar``).

    An image's id is the ``image_id`` in its .json, which we write, else its key. Its captions are those of the .json, else
    the text of its .txt or .caption as one.
    """

    name = "webdataset"
    links = frozenset({"copy"})

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether there is a tar file; a folder must hold no images beside it."""
        if place.is_folder:
            return any(name.endswith(".tar") for name in place.names) and not any(map(is_image, place.names))
        return place.path.name.endswith(".tar")

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless there is one."""
        if not any(name.endswith(".tar") for name in (place.names if place.is_folder else [place.path.name])):
            raise UsageError(f"{place.path} is no .tar file, nor a folder of them, which format 'webdataset' needs.")

    @cached_property
    def shards(self) -> list[Path]:
        """The tar files, in order.

        Raises:
            UsageError: one that the pattern names does not exist.
        """
        if self.place.is_folder:
            return [self.place.path / name for name in self.place.names if name.endswith(".tar")]
        shards = [Path(name) for name in expand(self.place.given)]
        for shard in shards:
            if not shard.is_file():
                raise UsageError(f"{shard} does not exist: correct the pattern {self.place.given}, or get the file.")
        return shards

    def read(self, splits: Sequence[str]) -> list[Example]:
        """All images, shard by shard."""
        return [
            Example(s.id, PackedImage(shard, s.member, s.offset, s.size), s.captions)
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
        suffix_of(example): images.read(example),
        ".txt": next(iter(example.references), "").encode(),
        ".json": json.dumps(record, ensure_ascii=False).encode(),
    }
    for ending, data in members.items():
        member = tarfile.TarInfo(key + ending)
        member.size, member.mode = len(data), 0o644
        archive.addfile(member, io.BytesIO(data))


def expand(pattern: str) -> Iterator[str]:
    """The names that a pattern with braces stands for: ``{00..02}`` counts, ``{a,b}`` lists."""
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    counted = _RANGE.fullmatch(match[1])
    if counted:
        first, last = counted[1], counted[2]
        words = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    else:
        words = match[1].split(",")
    for word in words:
        yield from expand(pattern[: match.start()] + word + pattern[match.end() :])
