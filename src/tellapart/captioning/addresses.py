"""Addresses of served models, checked before torch is imported."""

from __future__ import annotations

from urllib.parse import urlsplit

from tellapart.captioning.defaults import ENDPOINT_KEY
from tellapart.errors import UsageError


def check_address(url: str) -> None:
    """Raise if an address is not that of an endpoint.

    Raises:
        UsageError: it is not an http address, or holds a user, a password or a query.
    """
    try:
        parsed = urlsplit(url)
        host, user, query = parsed.hostname, parsed.username or parsed.password, parsed.query or parsed.fragment
        parsed.port  # noqa: B018  # raises where it is not a number
    except ValueError as error:
        raise UsageError("--endpoint is not a valid address: write http://HOST:PORT/v1.") from error
    if user or query:
        raise UsageError(
            f"--endpoint holds a user, a password or a query: write http://HOST:PORT/v1, and put a key into {ENDPOINT_KEY}."
        )
    if parsed.scheme not in ("http", "https") or not host:
        raise UsageError(f"--endpoint is {url!r}: write http://HOST:PORT/v1.")
