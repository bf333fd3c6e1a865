"""Images at addresses, fetched once and kept in the cache folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.data.decoding import decode, require_header
from tellapart.data.images import ImageSource, printable
from tellapart.data.remote.addresses import require_no_password
from tellapart.data.sniff import ImageError
from tellapart.files import cache_dir, write_bytes

if TYPE_CHECKING:
    from PIL import Image

LARGEST_IMAGE = 100 * 2**20
"""Bytes from which a remote image is refused."""

AT_ONCE = 8
"""Images of a batch that are fetched at once."""


class RemoteImage:
    """An image that is fetched when it is first read.

    Raises:
        UsageError: its address holds a password.
    """

    url: str

    def __post_init__(self) -> None:
        require_no_password(self.url)

    @property
    def name(self) -> str:
        """The address."""
        return printable(self.url)

    @property
    def version(self) -> str:
        """What tells its content from an earlier one at the same address; empty where that is unknown."""
        return ""

    @property
    def cached(self) -> Path:
        """Where its bytes are kept."""
        key = hashlib.sha256(f"{self.url}\n{self.version}".encode(errors="surrogatepass")).hexdigest()
        return cache_dir() / "urls" / key[:2] / key

    def fetch(self) -> bytes:
        """Its bytes, from where it is.

        Raises:
            ImageError: it cannot be fetched.
        """
        raise NotImplementedError

    def read(self) -> bytes:
        """The bytes, fetched unless they are in the cache. What is not an image is not kept.

        Raises:
            ImageError: it cannot be fetched, is too large, or is not an image.
        """
        with suppress(OSError):
            return self.cached.read_bytes()
        data = self.fetch()
        require_header(data, self.name)  # a page that says "try later" is not to be remembered as the image
        write_bytes(self.cached, data)
        return data

    def open(self) -> Image.Image:
        """The decoded image, upright, in RGB.

        Raises:
            ImageError: as ``read``, and if it cannot be decoded.
        """
        return decode(self.read(), self.name)

    def fingerprint(self) -> str:
        """SHA-256 of the encoded bytes."""
        return hashlib.sha256(self.read()).hexdigest()


@dataclass(frozen=True)
class UrlImage(RemoteImage):
    """An image at an ``http://`` or ``https://`` address.

    Args:
        url: the address.
        allow_private: whether it may lead to a host of a private network.
    """

    url: str
    allow_private: bool = False

    def fetch(self) -> bytes:
        """The bytes at the address."""
        from tellapart.data.remote.web import FetchError, fetch  # here: most data need no HTTP

        try:
            return fetch(self.url, most=LARGEST_IMAGE, allow_private=self.allow_private)
        except FetchError as error:
            raise ImageError(str(error)) from error


def fetch_ahead(images: Iterable[ImageSource]) -> dict[str, str]:
    """Fetch those of the images that are remote, several at once.

    Returns:
        Name of an image -> why it could not be fetched.
    """
    remote = [image for image in images if isinstance(image, RemoteImage) and not image.cached.is_file()]
    if not remote:
        return {}
    with ThreadPoolExecutor(min(AT_ONCE, len(remote))) as pool:
        errors = pool.map(_error_of, remote)
        return {image.name: error for image, error in zip(remote, errors, strict=True) if error is not None}


def _error_of(image: RemoteImage) -> str | None:
    try:
        image.read()
    except ImageError as error:
        return str(error)
    return None
