"""The folder of a captioned collection: its shards, a review part per shard, and the settings that all of them share."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from tellapart.captioning.shards.parts import Part
from tellapart.data.remote.folders import Folder, version_of, versions_of
from tellapart.errors import UsageError
from tellapart.files import remove_half_written
from tellapart.locks import Lock

SETTINGS = "settings.json"
REVIEW = "review"
CLAIMS = ".claims"
_FAILED, _DAMAGED = ".failed.json", ".damaged.txt"


class _PartName(NamedTuple):
    """What the name of a review part says.

    Attributes:
        shard: the shard that it is of.
        size: its bytes.
        source: hash of the input's version; None in parts of earlier versions of tellapart.
    """

    shard: str
    size: int
    source: str | None


class Reopened(NamedTuple):
    """What changed since a folder was captioned.

    Attributes:
        changed: addresses of inputs that did, whose shards are captioned again.
        damaged: addresses of inputs that were damaged and did not.
    """

    changed: list[str]
    damaged: list[str]


class ShardFolder:
    """Where shards of captions go.

    A shard is done when its file is there, and its review part ``review/NAME.DIGEST.SIZE.INPUT.json``, which is written after it.
    The digest is that of the settings, so shards of other settings do not count. The size is that of the file in bytes, so a file
    that was cut does not count. ``INPUT`` is a hash of the input's version, so that one that was replaced, extended or repaired
    is captioned again. ``review/NAME.damaged.txt`` is there if the input was damaged.

    Args:
        folder: the folder.
        digest: of the settings.

    Attributes:
        versions: address of an input -> its version, of those that ``reopen_changed`` was given.
    """

    def __init__(self, folder: Folder, digest: str) -> None:
        self.folder, self.digest = folder, digest
        self.versions: dict[str, str] = {}

    @classmethod
    def begin(
        cls, folder: Folder, settings: Mapping[str, Any], *, overwrite: bool = False, shards: Collection[str] = ()
    ) -> ShardFolder:
        """The folder with these settings, which are written if there are none.

        Args:
            folder: the folder.
            settings: everything that decides the captions, as JSON values.
            overwrite: replace other settings; shards that were captioned with others count as not done. With unchanged settings
                it does nothing.
            shards: names of those to be written.

        Raises:
            UsageError: the folder was begun with other settings, or has none and holds a file with the name of a shard.
        """
        text = json.dumps(dict(settings), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        now, before = json.loads(text), _settings(folder)
        if before is None and not overwrite:
            _require_free(folder, shards)
        different = [] if before is None else [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if different and not overwrite:
            key, said = different[0], before or {}
            raise UsageError(
                f"{folder.address} was begun with {_shown(key, said.get(key))}, not {_shown(key, now.get(key))}: give the same "
                "options to resume, or --overwrite to start anew."
            )
        output = cls(folder, digest_of(now))
        if different:  # shards of these settings may have been replaced since by those of others
            for name in folder.names(REVIEW):
                if name.endswith((_FAILED, _DAMAGED)) or output._part_of(name) is not None:
                    folder.remove(f"{REVIEW}/{name}")
        if before != now:
            folder.write(SETTINGS, text.encode())
        return output

    @classmethod
    def existing(cls, folder: Folder) -> ShardFolder:
        """A folder that was begun before.

        Raises:
            UsageError: it has no settings.
        """
        settings = _settings(folder)
        if settings is None:
            raise UsageError(
                f"{folder.address} holds no {SETTINGS}: name the --output of tellapart caption --by_shard."
            )
        return cls(folder, digest_of(settings))

    @property
    def base(self) -> Path:
        """The folder that paths of images are relative to."""
        return self.folder.local if self.folder.local is not None else Path(self.folder.address)

    def part_name(self, shard: str, size: int, source: str) -> str:
        """Where the review part is of a shard of some bytes, made of the input at an address."""
        return self._named(shard, size, self._stamp(source))

    def _named(self, shard: str, size: int, stamp: str) -> str:
        return f"{REVIEW}/{shard}.{self.digest}.{size}.{stamp}.json"

    def _stamp(self, source: str) -> str:
        version = self.versions[source] if source in self.versions else version_of(source)
        return hashlib.sha256(version.encode()).hexdigest()[:8]

    def _part_of(self, name: str) -> _PartName | None:
        """What the name of a review part of these settings says."""
        found = re.fullmatch(rf"(.+)\.{self.digest}\.(\d+)(?:\.([0-9a-f]{{8}}))?\.json", name)
        return None if found is None else _PartName(found[1], int(found[2]), found[3])

    def _done(self) -> dict[str, str]:
        """Shard -> its review part, of the shards that are done: two listings."""
        names = sorted(self.folder.names(REVIEW))
        sizes = self.folder.sizes()
        parts = [(name, part) for name in names if (part := self._part_of(name)) is not None]
        return {part.shard: f"{REVIEW}/{name}" for name, part in parts if part.size == sizes.get(part.shard)}

    def done(self) -> set[str]:
        """The shards that are done: two listings."""
        return set(self._done())

    def is_done(self, shard: str, source: str) -> bool:
        """Whether a shard is done, of a folder on this machine; elsewhere the listing tells."""
        local = self.folder.local
        if local is None or not (local / shard).is_file():
            return False
        return (local / self.part_name(shard, (local / shard).stat().st_size, source)).is_file()

    def reopen_changed(self, sources: Mapping[str, str]) -> Reopened:
        """Have shards count as not done whose input has changed since.

        Args:
            sources: shard -> address of its input.

        Raises:
            UsageError: a store cannot be read.
        """
        self.versions = versions_of(sources.values())
        names, changed = self.folder.names(REVIEW), list[str]()
        damaged = sorted(name.removesuffix(_DAMAGED) for name in names if name.endswith(_DAMAGED))
        for name in sorted(names):
            part = self._part_of(name)
            if part is None or part.shard not in sources or (part.source is None and part.shard not in damaged):
                continue
            if part.source != self._stamp(sources[part.shard]):
                self.folder.remove(f"{REVIEW}/{name}")
                changed.append(sources[part.shard])
        same = [sources[shard] for shard in damaged if shard in sources and sources[shard] not in changed]
        return Reopened(changed, same)

    def failed(self) -> dict[str, str]:
        """Shard -> why it was given up."""
        names = sorted(name for name in self.folder.names(REVIEW) if name.endswith(_FAILED))
        found = ((name.removesuffix(_FAILED), self.folder.read(f"{REVIEW}/{name}")) for name in names)
        return {shard: str(json.loads(data)["reason"]) for shard, data in found if data is not None}

    def claim(self, shard: str) -> AbstractContextManager[Any]:
        """Hold a shard while the block runs, in a folder on this machine; elsewhere ``--shard I/N`` divides them.

        Raises:
            TakenError: another process holds it.
        """
        local = self.folder.local
        if local is None:
            return nullcontext()
        return Lock(local / CLAIMS / f"{shard}.lock", f"captioning {shard} into", what=local, patience=0.0)

    @contextmanager
    def writing(self, shard: str, finish: Callable[[], Part], source: str) -> Iterator[Path]:
        """A temporary file that becomes the shard, and after it the review part that ``finish`` gives.

        Args:
            shard: its name.
            finish: gives the review part, once the file is written.
            source: address of its input.

        Raises:
            UsageError: a store cannot be written.
            OSError: the same, on this machine.
        """
        if self.folder.local is not None:
            remove_half_written(self.folder.local, {shard})
            hidden = (name[1:].rpartition(".")[0] for name in self.folder.names(REVIEW) if name.startswith("."))
            parts = {name for name in hidden if (found := self._part_of(name)) is not None and found.shard == shard}
            remove_half_written(self.folder.local / REVIEW, {f"{shard}{_FAILED}", f"{shard}{_DAMAGED}"} | parts)
        stamp = self._stamp(source)
        with self.folder.writing(shard) as temporary:
            yield temporary
            size = temporary.stat().st_size
        part = finish()
        if part.damaged:  # before the part, which says that the shard is done
            self.folder.write(f"{REVIEW}/{shard}{_DAMAGED}", str(part.damaged).encode())
        self.folder.write(self._named(shard, size, stamp), part.as_json())
        for ending in (_FAILED,) if part.damaged else (_FAILED, _DAMAGED):
            self.folder.remove(f"{REVIEW}/{shard}{ending}")

    def give_up(self, shard: str, why: str) -> None:
        """Write down that a shard failed."""
        self.folder.write(f"{REVIEW}/{shard}{_FAILED}", json.dumps({"reason": why}, ensure_ascii=False).encode())

    def parts(self) -> Iterator[Part]:
        """The review parts of all shards that are done, one after another.

        Raises:
            UsageError: one is damaged.
        """
        for _, name in sorted(self._done().items()):
            data = self.folder.read(name)
            if data is None:
                continue
            try:
                yield Part.from_json(data)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                where = self.folder.at(name)
                raise UsageError(f"{where} is damaged: remove it, and caption the shard again.") from error


def digest_of(settings: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that tell settings apart."""
    return hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:8]


def _settings(folder: Folder) -> dict[str, Any] | None:
    data = folder.read(SETTINGS)
    try:
        found = None if data is None else json.loads(data)
    except ValueError:
        found = {}
    return found if isinstance(found, dict) or found is None else {}


def _require_free(folder: Folder, shards: Collection[str]) -> None:
    """Raise where a file has the name of a shard that is to be written, and nothing says that such a command wrote it."""
    taken = sorted(folder.names() & set(shards))
    if taken and _settings(folder) is None:  # another command writes them before its shards
        raise UsageError(
            f"{folder.address} holds {taken[0]}, but no {SETTINGS}, so --by_shard did not write it: name another folder, or give "
            "--overwrite to replace it."
        )


def _shown(key: str, value: Any) -> str:
    return f"--{key} {value}" if value is not None else f"no --{key}"
