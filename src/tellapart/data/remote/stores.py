"""Files in object stores and other file systems of fsspec: listing, images, and copies of tables and archives."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, BinaryIO

from tellapart.data.remote.addresses import file_of, is_web, require_no_password, scheme_of
from tellapart.data.remote.images import LARGEST_IMAGE, RemoteImage
from tellapart.data.sniff import ImageError
from tellapart.errors import UsageError, without_secrets
from tellapart.files import beside, cache_dir, read_object, write_json
from tellapart.progress import bar

LARGEST_COPY = 100 * 2**30
"""Bytes from which a remote table or archive is refused."""

_CHUNK = 2**20
_VERSIONS = ("ETag", "etag", "blob_id", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")
"""What file systems call what changes with a file."""


@dataclass(frozen=True)
class StoredFile:
    """A file as a listing shows it.

    Args:
        url: its address.
        version: what changes when its content does, as far as the file system says.
    """

    url: str
    version: str


@dataclass(frozen=True)
class StoredImage(RemoteImage):
    """An image in a file system of fsspec.

    Args:
        url: its address.
        stamp: its version in the listing; empty where there was none.
    """

    url: str
    stamp: str = ""

    @property
    def version(self) -> str:
        """The stamp."""
        return self.stamp

    def fetch(self) -> bytes:
        """The file's bytes."""
        with reading(self.url) as file:
            data = file.read(LARGEST_IMAGE + 1)
        if len(data) > LARGEST_IMAGE:
            raise ImageError(f"{self.url} has more than {LARGEST_IMAGE:,} bytes, too many for an image: remove it.")
        return data


@contextmanager
def reading(url: str) -> Iterator[BinaryIO]:
    """An open file; whatever a file system raises becomes one sentence.

    Raises:
        ImageError: it cannot be read.
    """
    try:
        filesystem, path = filesystem_at(url)
    except UsageError as error:  # such as a package that is not installed
        raise ImageError(str(error)) from error
    with explained(url, ImageError), filesystem.open(path, "rb") as file:
        yield file


def listed(url: str, *, below: bool = True) -> list[StoredFile]:
    """A file, the files that a pattern matches, or all files below a folder, sorted; hidden ones are skipped.

    Args:
        url: the address.
        below: whether files in the folders of a folder belong to it.

    Raises:
        UsageError: there is nothing there, or the file system cannot be used.
    """
    filesystem, path = filesystem_at(url)
    with explained(url, UsageError):
        if has_magic(path):
            found: Mapping[str, Any] = filesystem.glob(path, detail=True)
        else:
            found = filesystem.find(path, maxdepth=None if below else 1, detail=True)  # of a file: itself
    files = [
        StoredFile(str(filesystem.unstrip_protocol(name)), _version(info))
        for name, info in sorted(found.items())
        if info.get("type") == "file" and not _hidden(name, path)
    ]
    if not files:
        raise UsageError(f"{url} does not exist or holds no files: check the address.")
    return files


def folder_of(url: str) -> str | None:
    """A folder's address as listings write it; None for files and patterns."""
    filesystem, path = filesystem_at(url)
    if has_magic(path):
        return None
    with explained(url, UsageError):
        return str(filesystem.unstrip_protocol(path)) if filesystem.isdir(path) else None


def _hidden(name: str, given: str) -> bool:
    """Whether a file or a folder that it is in, below what was named without wildcards, begins with a dot."""
    fixed = given if not has_magic(given) else re.split(r"[*?\[]", given, maxsplit=1)[0].rpartition("/")[0]
    return any(part.startswith(".") for part in name.removeprefix(fixed).split("/"))


def _version(info: Mapping[str, Any]) -> str:
    stamp = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return f"{info.get('size')} {stamp}"


def filesystem_at(url: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it.

    Raises:
        UsageError: the address is chained or holds credentials, or the file system cannot be used.

    Example:
        >>> filesystem_at("memory://bucket/x.tar")[1]
        '/bucket/x.tar'
    """
    from fsspec.core import url_to_fs

    require_no_password(url)
    if "::" in url:
        raise UsageError(f"{url} chains addresses with '::': name one address.")
    with explained(url, UsageError):
        filesystem, path = url_to_fs(url)
        return filesystem, str(path)


@contextmanager
def explained(url: str, kind: type[UsageError], *, doing: str = "read") -> Iterator[None]:
    """Raise whatever a file system raises in the block as one sentence, without the secrets of the environment.

    Args:
        url: the address.
        kind: class of the error.
        doing: what is done with the address, in the participle: read, written.

    Raises:
        UsageError: of that class.
    """
    try:
        yield
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise kind(f"{url} does not exist: check the address.") from error
    except ImportError as error:
        reason = without_secrets(" ".join(str(error).split())).rstrip(".")
        raise kind(f"{scheme_of(url)}:// needs a package that is not installed ({reason}): install it.") from error
    except Exception as error:  # each file system has errors of its own
        reason = without_secrets(" ".join(str(error).split()))[:300].rstrip(".") or type(error).__name__
        raise kind(f"{url} cannot be {doing} ({reason}): check the address and your access to it.") from error


# Copies of what cannot be read in place: tables, and archives whose images lie at byte offsets. A copy is taken again when
# the original has changed.


def copies(files: Iterable[StoredFile], *, allow_private: bool = False) -> list[Path]:
    """Local copies of files, in the cache folder; those of one remote folder lie in one folder, under their own names.

    Args:
        files: the files.
        allow_private: whether web addresses may lead to hosts of a private network.

    Raises:
        UsageError: a file cannot be copied.
    """
    return [
        _whole_web_copy(file.url, allow_private) if is_web(file.url) else _stored_copy(file.url, file.version)
        for file in files
    ]


def _place(url: str) -> Path:
    name = file_of(url) or "file"
    folder = hashlib.sha256(url.partition("?")[0].rpartition("/")[0].encode(errors="surrogatepass")).hexdigest()[:32]
    own = "" if "?" not in url else hashlib.sha256(url.encode()).hexdigest()[:8]
    return cache_dir() / "remote" / folder / own / name


def _about(copy: Path) -> Path:
    return copy.with_name(f".{copy.name}.about.json")


def _stored_copy(url: str, version: str) -> Path:
    copy = _place(url)
    if copy.is_file() and read_object(_about(copy)).get("version") == version:
        return copy
    filesystem, path = filesystem_at(url)
    with explained(url, UsageError), filesystem.open(path, "rb") as file:
        _write(copy, iter(lambda: file.read(_CHUNK), b""), url, getattr(file, "size", None))
    write_json(_about(copy), {"url": url, "version": version})
    return copy


def _whole_web_copy(url: str, allow_private: bool) -> Path:
    from tellapart.data.remote.web import until_whole

    return until_whole(lambda: _web_copy(url, allow_private))


def _web_copy(url: str, allow_private: bool) -> Path:
    from tellapart.data.remote.web import limited, opened

    copy = _place(url)
    known = read_object(_about(copy)) if copy.is_file() else {}
    asked = {"if-none-match": "etag", "if-modified-since": "last-modified"}
    headers = {name: known[key] for name, key in asked.items() if known.get(key)}
    with opened(url, allow_private=allow_private, headers=headers) as answer:
        if answer.status == 304:
            return copy
        length = answer.headers.get("content-length", "")
        chunks = limited(answer, url, most=LARGEST_COPY)
        _write(copy, chunks, url, int(length) if length.isdecimal() else None)
        kept = {key: answer.headers[key] for key in asked.values() if key in answer.headers}
    write_json(_about(copy), {"url": url, **kept})
    return copy


def _write(copy: Path, chunks: Iterable[bytes], url: str, size: int | None) -> None:
    """The chunks as a file, which appears when it is whole."""
    with suppress(FileNotFoundError):
        _about(copy).unlink()
    shown_size = max((size or 0) >> 20, 1)
    with (
        bar(f"copying {file_of(url)} (MiB)", shown_size) as shown,
        beside(copy) as temporary,
        temporary.open("wb") as target,
    ):
        _pour(chunks, target, shown.advance)


def _pour(chunks: Iterable[bytes], target: BinaryIO, advance: Callable[[int], None]) -> None:
    before = 0
    for chunk in chunks:
        target.write(chunk)
        advance((target.tell() >> 20) - (before >> 20))
        before = target.tell()
