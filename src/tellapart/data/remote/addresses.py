"""Telling addresses from paths; imports nothing that reads them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from tellapart.errors import UsageError

STORES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hf")
"""Schemes of object stores that a cell of a table may name; what a user names may have any scheme that fsspec knows."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@:]*:(?!\d{1,5}(?:/|$))[^@]*@", re.IGNORECASE)
"""A user and a password, which may hold a slash; a host with a port is neither."""
_WEB_USER = re.compile(r"https?://[^/?#]*@", re.IGNORECASE)
"""The same of HTTP, or a user alone, which may be a token."""


def scheme_of(text: str) -> str | None:
    """The scheme of an address in small letters; None for a path.

    Example:
        >>> scheme_of("S3://bucket/key"), scheme_of("photos/1.jpg")
        ('s3', None)
    """
    match = _SCHEME.match(text)
    return match[1].lower() if match else None


def is_web(text: str) -> bool:
    """Whether a text is an ``http://`` or ``https://`` address."""
    return scheme_of(text) in ("http", "https")


def file_of(address: str) -> str:
    """The file's name at the end of an address, without query and fragment."""
    return PurePosixPath(urlsplit(address).path if is_web(address) else address).name


def require_no_password(address: str) -> None:
    """Raise where an address holds a user and a password, before a message, an id or a file can hold them.

    Raises:
        UsageError: it does; the sentence leaves them out.

    Example:
        >>> require_no_password("s3://bucket/x.tar")
    """
    if is_web(address) and _WEB_USER.match(address):
        raise UsageError(
            f"an address of {scheme_of(address)}:// holds a user or a password: copy the file, and name the copy."
        )
    if _PASSWORD.match(address):
        raise UsageError(
            f"an address of {scheme_of(address)}:// holds a user and a password: leave them out, and set them in the "
            "environment."
        )
