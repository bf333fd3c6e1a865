"""Folders that are read and written, on this machine or in a store of fsspec."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TypeVar
from uuid import uuid4

from tellapart.data.remote.addresses import scheme_of
from tellapart.data.remote.stores import StoredFile, explained, filesystem_at, listed
from tellapart.errors import UsageError
from tellapart.files import beside

T = TypeVar("T")

WHOLE_PUTS = frozenset({"s3", "gs", "gcs", "az", "abfs", "abfss", "hf"})
"""Schemes of stores where a file appears when it is whole; elsewhere it is put under another name first, and then renamed."""
ATTEMPTS = 4
"""Requests to a store before it is given up."""
BACK_OFF = 0.5
"""Seconds before the second request, doubled before each further one."""
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, NotImplementedError, UsageError)


def retried(action: Callable[[], T]) -> T:
    """What an action gives; it is repeated a few times with growing pauses when it fails in a way that may pass.

    Raises:
        Exception: that of the last attempt, or at once one that says that the file is missing or must not be used.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return action()
        except _FINAL:
            raise
        except Exception:  # each file system has errors of its own
            time.sleep(BACK_OFF * 2**attempt)
    return action()


@contextmanager
def reading_in_place(address: str) -> Iterator[BinaryIO]:
    """An open file that can be sought in; of a store, blocks are fetched ahead as it is read.

    Args:
        address: a path, or an address of fsspec.

    Raises:
        UsageError: it cannot be opened.
        OSError: the same, of a path.
    """
    if scheme_of(address) is None:
        with Path(address).open("rb") as file:
            yield file
        return
    filesystem, path = filesystem_at(address)
    with explained(address, UsageError):
        remote = retried(lambda: filesystem.open(path, "rb"))
    with remote:
        yield remote


def version_of(address: str) -> str:
    """What changes when a file is replaced: its size, with the time of its last change or what a store says of it.

    Args:
        address: a path, or an address of fsspec.

    Raises:
        UsageError: a store cannot be asked.
        OSError: the file does not exist.
    """
    if scheme_of(address) is None:
        about = Path(address).stat()
        return f"{about.st_size}-{about.st_mtime_ns}"
    return retried(lambda: listed(address))[0].version


def versions_of(addresses: Iterable[str]) -> dict[str, str]:
    """Address -> version of each file, as of ``version_of``; folders of stores are listed once.

    Raises:
        UsageError: a store cannot be asked, or a file is not there any more.
        OSError: the same, of a path.
    """
    asked = list(addresses)
    parents = {address.rpartition("/")[0] for address in asked if scheme_of(address) is not None}
    stored = {file.url: file.version for parent in parents for file in _versions_in(parent)}
    return {address: stored[address] if address in stored else version_of(address) for address in asked}


def _versions_in(parent: str) -> list[StoredFile]:
    try:
        return retried(lambda: listed(parent, below=False))
    except UsageError:  # a store may refuse to list what it lets read
        return []


class Folder:
    """A folder whose files appear whole or not at all.

    Args:
        address: a path, or an address of fsspec, without credentials.

    Raises:
        UsageError: the file system cannot be used.

    Example:
        >>> folder = Folder("memory://bucket/out")
        >>> folder.write("settings.json", b"{}")
        >>> sorted(folder.names())
        ['settings.json']
    """

    def __init__(self, address: str) -> None:
        self.address = address if address.strip("/") == "" else address.rstrip("/")
        self.local = Path(address) if scheme_of(address) is None else None
        if self.local is None:
            filesystem_at(address)

    def at(self, name: str) -> str:
        """The address of a file in it."""
        return str(self.local / name) if self.local is not None else f"{self.address}/{name}"

    def names(self, below: str = "") -> set[str]:
        """Names of the files in it, or in a folder of it; none where there is no such folder.

        Raises:
            UsageError: the store cannot be read.
        """
        return set(self.sizes(below))

    def sizes(self, below: str = "") -> dict[str, int]:
        """Name -> bytes of the files in it, or in a folder of it; one listing.

        Raises:
            UsageError: the store cannot be read.
        """
        if self.local is not None:
            folder = self.local / below
            found = os.scandir(folder) if folder.is_dir() else ()
            return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
        filesystem, path = filesystem_at(self.at(below).rstrip("/"))
        with explained(self.at(below), UsageError):
            return retried(lambda: _listed(filesystem, path))

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where there is none.

        Raises:
            UsageError: it cannot be read.
            OSError: the same, on this machine.
        """
        if self.local is not None:
            path = self.local / name
            return path.read_bytes() if path.is_file() else None
        filesystem, inner = filesystem_at(self.at(name))
        with explained(self.at(name), UsageError):
            try:
                return bytes(retried(lambda: filesystem.cat_file(inner)))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file.

        Raises:
            UsageError: it cannot be written.
            OSError: the same, on this machine.
        """
        with self.writing(name) as temporary:
            temporary.write_bytes(data)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A temporary file on this machine that becomes a file of the folder when the block ends without an error.

        Raises:
            UsageError: it cannot be put into the store.
            OSError: it cannot be written on this machine.
        """
        if self.local is not None:
            with beside(self.local / name) as temporary:
                yield temporary
            return
        with TemporaryDirectory(prefix="tellapart-") as folder:
            file = Path(folder) / "file"
            yield file
            self._put(file, name)

    def _put(self, file: Path, name: str) -> None:
        filesystem, path = filesystem_at(self.at(name))
        with explained(self.at(name), UsageError, doing="written"):
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            if scheme_of(self.address) in WHOLE_PUTS:
                retried(lambda: filesystem.put_file(str(file), path))
                return
            head, _, tail = path.rpartition("/")
            temporary = f"{head}/.{tail}.{uuid4().hex[:8]}"
            try:
                retried(lambda: filesystem.put_file(str(file), temporary))
                retried(lambda: filesystem.mv(temporary, path))
            except BaseException:
                if filesystem.exists(temporary):
                    filesystem.rm_file(temporary)
                raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        Raises:
            UsageError: it cannot be removed from the store.
            OSError: the same, on this machine.
        """
        if self.local is not None:
            (self.local / name).unlink(missing_ok=True)
            return
        filesystem, path = filesystem_at(self.at(name))
        with explained(self.at(name), UsageError, doing="removed"):
            if filesystem.exists(path):
                retried(lambda: filesystem.rm_file(path))


def _listed(filesystem: Any, path: str) -> dict[str, int]:
    filesystem.invalidate_cache(path)  # others write here
    if not filesystem.isdir(path):
        return {}
    files = [info for info in filesystem.ls(path, detail=True) if info.get("type") == "file"]
    return {str(info["name"]).rstrip("/").rpartition("/")[2]: int(info["size"]) for info in files}
