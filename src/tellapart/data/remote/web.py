"""Fetching over HTTP: only from public addresses by default, with time-outs, a size limit and retries."""

from __future__ import annotations

import math
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from socket import EAI_AGAIN, SOCK_STREAM, gaierror, getaddrinfo
from typing import Any, TypeVar

import httpcore2
import httpx2

from tellapart.errors import UsageError

T = TypeVar("T")

SCHEMES = ("http", "https")
CONNECT_SECONDS, READ_SECONDS, HEAD_SECONDS = 10.0, 30.0, 60.0
"""Longest wait for a connection, for the next bytes, and for the whole head of an answer."""
ATTEMPTS = 3
"""Requests before an address is given up."""
BACK_OFF, LONGEST_WAIT = 0.5, 10.0
"""Seconds before the second request, doubled before each further one; and the longest wait that a server may ask for."""
REDIRECTS = 5
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may be different the next time."""
MOVED = frozenset({301, 302, 303, 307, 308})
COMPRESSED = frozenset({"gzip", "deflate", "br", "zstd", "compress"})
"""Encodings of a body. None is asked for: unpacked, a small body could fill the disk."""
AGENT = "tellapart"


class FetchError(UsageError):
    """An address cannot be fetched; the sentence names it and says why."""


class _PassingError(Exception):
    """Errors that may pass when retried.

    Args:
        why: a few words.
        wait: seconds that the server asks to wait.
    """

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


@dataclass(frozen=True)
class Answer:
    """What a server sends.

    Args:
        status: 200, or 304 where the caller's copy is still the newest.
        headers: in small letters.
        chunks: the body, as it comes.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] = ()


@contextmanager
def opened(url: str, *, allow_private: bool = False, headers: Mapping[str, str] | None = None) -> Iterator[Answer]:
    """The answer of a server, whose body is read in the block; failures before the body are tried again.

    Args:
        url: an ``http://`` or ``https://`` address.
        allow_private: whether it may lead to a private, local or otherwise not public address.
        headers: further headers of the request.

    Raises:
        FetchError: the address is not allowed, cannot be reached, or the answer is an error.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _followed(url, allow_private, headers or {}) as answer:
                yield answer
            return
        except _PassingError as error:
            if attempt == ATTEMPTS:
                raise FetchError(
                    f"{url} cannot be fetched ({error}): check the address, or try again later."
                ) from error
            time.sleep(min(max(BACK_OFF * 2 ** (attempt - 1), error.wait), LONGEST_WAIT))


def fetch(url: str, *, most: int, allow_private: bool = False, seconds: float = 120.0) -> bytes:
    """The bytes at an address; a body that breaks off is fetched again.

    Args:
        url: an ``http://`` or ``https://`` address.
        most: the most bytes that are accepted.
        allow_private: as for ``opened``.
        seconds: the longest time that a body may take.

    Raises:
        FetchError: as ``opened``, and if the body is too large or too slow.
    """

    def body() -> bytes:
        with opened(url, allow_private=allow_private) as answer:
            return b"".join(limited(answer, url, most=most, seconds=seconds))

    return until_whole(body)


class BrokenBodyError(FetchError):
    """A body broke off."""


def until_whole(read: Callable[[], T]) -> T:
    """What ``read`` gives; it is called again when a body breaks off, a few times in all.

    Raises:
        FetchError: as ``read`` does.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return read()
        except BrokenBodyError:
            time.sleep(BACK_OFF * 2**attempt)
    return read()


def limited(answer: Answer, url: str, *, most: int, seconds: float | None = None) -> Iterator[bytes]:
    """The body of an answer, chunk by chunk.

    Args:
        answer: of ``opened``.
        url: for messages.
        most: the most bytes that are accepted.
        seconds: the longest time it may take; None sets no limit.

    Raises:
        FetchError: it is too large or too slow.
        BrokenBodyError: it breaks off.
    """
    size, start = 0, time.monotonic()
    if answer.headers.get("content-length", "").isdecimal() and int(answer.headers["content-length"]) > most:
        raise _too_large(url, most)
    try:
        for chunk in answer.chunks:
            size += len(chunk)
            if size > most:
                raise _too_large(url, most)
            if seconds is not None and time.monotonic() - start > seconds:
                raise FetchError(
                    f"{url} takes longer than {seconds:g} seconds to fetch: leave it out, or copy the file."
                )
            yield chunk
    except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, ssl.SSLError) as error:
        raise BrokenBodyError(f"{url} broke off after {size:,} bytes ({_words(error)}): try again later.") from error


def _too_large(url: str, most: int) -> FetchError:
    return FetchError(
        f"{url} has more than {most:,} bytes, the limit: leave it out, or copy the file and name the copy."
    )


@contextmanager
def _followed(url: str, allow_private: bool, headers: Mapping[str, str]) -> Iterator[Answer]:
    """The answer after redirects.

    Raises:
        FetchError: the address is not allowed, or the answer is an error that stays.
        _PassingError: the answer is an error that may pass.
    """
    here = _parsed(url, url)
    for _ in range(REDIRECTS + 1):
        with _answer(here, url, allow_private, headers) as answer:
            if answer.status not in MOVED:
                yield answer
                return
            here = _parsed(str(here.join(answer.headers.get("location", ""))), url)
    raise FetchError(f"{url} is redirected more than {REDIRECTS} times: check the address.")


def _parsed(text: str, url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(text)
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise FetchError(f"{url} is not a valid address ({error}): correct it.") from error
    if parsed.scheme not in SCHEMES or not parsed.host:
        raise FetchError(f"{url} leads to {text[:80]!r}, which is not an http or https address: leave it out.")
    return parsed


@contextmanager
def _answer(here: httpx2.URL, url: str, allow_private: bool, headers: Mapping[str, str]) -> Iterator[Answer]:
    target = httpcore2.URL(scheme=here.raw_scheme, host=here.raw_host, port=here.port, target=here.raw_path or b"/")
    sent: list[tuple[bytes | str, bytes | str]] = [
        ("user-agent", AGENT),
        ("accept", "*/*"),
        ("accept-encoding", "identity"),
        *headers.items(),
    ]
    waits = {"connect": CONNECT_SECONDS, "read": READ_SECONDS, "write": READ_SECONDS, "pool": None}
    try:
        known = _connections(os.getpid(), allow_private)
        stream = known.pool.stream("GET", target, headers=sent, extensions={"timeout": waits})
        with known.deadline.within(HEAD_SECONDS):
            response = stream.__enter__()
    except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
        raise _PassingError(_words(error)) from error
    except FetchError as error:
        raise FetchError(f"{url} is not fetched: {error}") from error
    except (ssl.SSLError, httpcore2.UnsupportedProtocol) as error:
        raise FetchError(f"{url} cannot be fetched ({_words(error)}): check the address.") from error
    try:
        found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        _require_good(response.status, found, url)
        yield Answer(response.status, found, response.iter_stream())
    finally:
        stream.__exit__(None, None, None)


def _require_good(status: int, headers: Mapping[str, str], url: str) -> None:
    if status in (200, 304) or status in MOVED:
        if status == 200 and (packed := COMPRESSED & set(re.findall(r"[a-z]+", headers.get("content-encoding", "")))):
            raise FetchError(f"{url} is sent compressed ({min(packed)}) unasked: copy the file, and name the copy.")
        return
    name = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    what = f"HTTP {status} {name}".rstrip()
    if status in PASSING:
        wait = headers.get("retry-after", "")
        raise _PassingError(what, float(wait) if wait.isdecimal() else 0.0)
    raise FetchError(f"{url} cannot be fetched ({what}): check the address.")


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text or {"ConnectTimeout": "no connection in time", "ReadTimeout": "no answer in time"}.get(
        type(error).__name__, type(error).__name__
    )


# Which addresses may be connected to. The check is where connections are made, so that it holds for redirects and for names
# that resolve to one address when they are checked and to another when they are used.


class Deadline(threading.local):
    """Until when this thread reads: a time-out of reading begins again with every byte, so a head of single bytes has no end."""

    until = math.inf

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Within, reading ends after ``seconds``."""
        self.until = time.monotonic() + seconds
        try:
            yield
        finally:
            self.until = math.inf

    def left(self, timeout: float | None) -> float | None:
        """The time-out of one more reading.

        Raises:
            httpcore2.ReadTimeout: the time is over.
        """
        left = self.until - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout("no whole answer in time")
        return timeout if math.isinf(left) else left if timeout is None else min(timeout, left)


class _Bounded(httpcore2.NetworkStream):
    """A connection whose readings a deadline ends."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Bounded(self._stream.start_tls(ssl_context, server_hostname, timeout), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class GuardedBackend(httpcore2.SyncBackend):
    """Connects to addresses that were checked.

    Args:
        allow_private: whether addresses that are not public are allowed.
        deadline: ends reading.
    """

    def __init__(self, allow_private: bool, deadline: Deadline) -> None:
        self.allow_private, self.deadline = allow_private, deadline

    def connect_tcp(  # type: ignore[no-untyped-def]
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None, socket_options=None
    ) -> httpcore2.NetworkStream:
        """A connection to the first address of a host that answers.

        Raises:
            FetchError: the host has an address that is not public, or does not exist.
        """
        error: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in addresses_of(host, port, allow_private=self.allow_private):
            try:
                found = super().connect_tcp(address, port, timeout, local_address, socket_options)
                return _Bounded(found, self.deadline)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as failed:
                error = failed
        raise error


def addresses_of(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host, each of which may be connected to.

    Raises:
        FetchError: there is none, or one of them is not public.
    """
    try:
        found = getaddrinfo(host, port, type=SOCK_STREAM)
    except gaierror as error:
        if error.errno == EAI_AGAIN:
            raise httpcore2.ConnectError(f"the name {host} is not resolved at the moment") from error
        raise FetchError(
            f"the host {host} is unknown: check the address, and whether this machine is online."
        ) from error
    except UnicodeError as error:
        raise FetchError(f"{host!r} is not a valid name of a host: check the address.") from error
    addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
    private = [address for address in addresses if not is_public(address)]
    if private and not allow_private:
        raise FetchError(
            f"the host {host} leads to {private[0]}, which is not a public address: leave it out, or give --allow_private if "
            "you trust every address in these data."
        )
    return addresses


def is_public(address: str) -> bool:
    """Whether an IP address is of the public internet, also where an IPv6 address embeds an IPv4 one.

    Example:
        >>> is_public("8.8.8.8"), is_public("169.254.169.254"), is_public("::ffff:127.0.0.1")
        (True, False, False)
    """
    parsed = ip_address(address)
    if isinstance(parsed, IPv4Address):
        return parsed.is_global and not parsed.is_multicast and parsed not in _OF_CLOUDS
    inner = _inner(parsed)
    if inner is not None and not is_public(str(inner)):
        return False
    return parsed.is_global and (parsed in _UNICAST or parsed in _NAT64)


_OF_CLOUDS = frozenset({IPv4Address("168.63.129.16")})
"""Addresses that look public and lead to the host of a virtual machine: Azure's."""

_UNICAST = IPv6Network("2000::/3")
"""What RFC 4291 gives to hosts of the internet. Others are local, reserved, multicast or embed IPv4 addresses."""

_NAT64 = IPv6Network("64:ff9b::/96")


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address embeds, if any: mapped, 6to4, Teredo or NAT64."""
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]


@dataclass(frozen=True)
class _Connections:
    """Those that are open, and what ends reading from them."""

    pool: httpcore2.ConnectionPool
    deadline: Deadline


@lru_cache(maxsize=2)
def _connections(process: int, allow_private: bool) -> _Connections:
    """The connections of a process: one that was forked does not share its parent's."""
    deadline = Deadline()
    pool = httpcore2.ConnectionPool(
        ssl_context=httpx2.create_ssl_context(),
        max_connections=64,
        max_keepalive_connections=16,
        keepalive_expiry=5.0,
        network_backend=GuardedBackend(allow_private, deadline),
    )
    return _Connections(pool, deadline)
