"""Telling addresses from paths; imports nothing that reads them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

STORES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hf")
"""Schemes of object stores that a cell of a table may name; what a user names may have any scheme that fsspec knows."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


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
