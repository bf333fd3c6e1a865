"""Tar archives of others: their members one by one, each within the file."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from tellapart.data.images import printable


def is_tar(name: str) -> bool:
    """Whether a file's name has the ending of a tar, in any case."""
    return name.lower().endswith(".tar")


class _Bounded(tarfile.TarInfo):
    """A header whose size is not negative: tarfile would step back and read the same header for ever."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Bounded:
        found = super().frombuf(buf, encoding, errors)
        _require_size(found)
        return found


def _require_size(member: tarfile.TarInfo) -> None:
    if member.size < 0:
        raise tarfile.ReadError(f"{printable(member.name)} has a size of {member.size} bytes")


@contextmanager
def reading_tar(file: BinaryIO) -> Iterator[tarfile.TarFile]:
    """An uncompressed tar, for ``members_within``.

    Args:
        file: opened, and one that can be sought in.

    Raises:
        tarfile.TarError: the file is not a tar.
    """
    with tarfile.open(fileobj=file, mode="r:", tarinfo=_Bounded) as archive:
        yield archive


def members_within(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members in their order, and nothing of them is kept; a member that is cut ends it.

    Args:
        archive: from ``reading_tar``.

    Raises:
        tarfile.ReadError: a member is not within the file, or the archive has no end.

    Example:
        >>> with open("shards/00000.tar", "rb") as file, reading_tar(file) as archive:
        ...     names = [member.name for member in members_within(archive)]
    """
    file = cast("BinaryIO", archive.fileobj)
    place = file.tell()
    length = file.seek(0, io.SEEK_END)
    file.seek(place)
    for member in archive:
        archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
        _require_size(member)  # one of a pax header
        if member.offset_data + member.size > length:
            raise tarfile.ReadError(f"it ends in the middle of {printable(member.name)}")
        yield member
    file.seek(archive.offset)
    if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:  # tarfile stops there without a word
        raise tarfile.ReadError(f"no end, or a damaged header at byte {archive.offset}")
