"""Data at addresses: images are fetched as they are read; tables and archives are copied into the cache folder and opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from tellapart.data.dataset import Example
from tellapart.data.folder import is_image
from tellapart.data.formats.base import Place
from tellapart.data.formats.open import Source, open_source
from tellapart.data.formats.patterns import braced
from tellapart.data.formats.splits import UNNAMED
from tellapart.data.remote.addresses import file_of, is_web, require_no_password
from tellapart.data.remote.images import RemoteImage, UrlImage
from tellapart.data.remote.stores import StoredFile, StoredImage, copies, folder_of, listed
from tellapart.errors import UsageError

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
COPIED = (".tar", ".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")
"""Endings of what is copied: where a folder holds several kinds, the first of these that it holds counts."""


class RemoteImages:
    """Images at addresses, without captions; their ids are their paths below the folder, else their addresses.

    Args:
        place: what was given.
        images: id -> image.
    """

    divided = False

    def __init__(self, place: Place, images: dict[str, RemoteImage]) -> None:
        self.place, self.images = place, images

    def splits(self) -> list[str]:
        """They count as training data."""
        return [UNNAMED]

    def read(self, splits: Sequence[str]) -> list[Example]:
        """The images."""
        return [Example(name, image) for name, image in self.images.items()]


def open_remote(place: Place, format: str | None) -> Source:
    """The data at an address.

    Args:
        place: an address, or several by a pattern.
        format: how to read tables and archives; None tells by their look.

    Raises:
        UsageError: there is nothing, or nothing that can be read.
    """
    require_no_password(place.given)
    if is_web(place.given):
        return _web(place, format)
    names = list(braced(place.given))
    files = [file for name in names for file in listed(name)]
    root = (folder_of(names[0]) if len(names) == 1 else None) or _root(files)
    if (table := _metadata(files, root)) is not None:
        return _copied(place, [table], format)
    images = [file for file in files if is_image(file.url)]
    if images and format is None:
        found: dict[str, RemoteImage] = {_below(file.url, root): StoredImage(file.url, file.version) for file in images}
        return RemoteImages(place, found)
    return _copied(place, _of_one_kind(place, files), format)


def _web(place: Place, format: str | None) -> Source:
    """Files by HTTP, which has no folders."""
    addresses = list(braced(place.given))
    if "*" in place.given:
        raise UsageError(f"{place.given} has a wildcard, but HTTP lists no folders: count with {{00000..00009}}.")
    if all(is_image(file_of(address)) for address in addresses) and format is None:
        return RemoteImages(place, {address: UrlImage(address, place.allow_private) for address in addresses})
    if not all(file_of(address).lower().endswith(COPIED) for address in addresses):
        raise UsageError(
            f"{place.given} is not the address of an image, a table or a tar ({', '.join(COPIED)}), and HTTP lists no folders: "
            "name the files."
        )
    return _copied(place, [StoredFile(address, "") for address in addresses], format)


def _copied(place: Place, files: Sequence[StoredFile], format: str | None) -> Source:
    """Local copies of the files, opened."""
    paths = tuple(map(str, copies(files, allow_private=place.allow_private)))
    given = paths[0] if len(paths) == 1 else place.given
    folders = (file.url.partition("?")[0].rpartition("/")[0] for file in files)
    return open_source(replace(place, given=given, files=paths, bases=dict(zip(paths, folders, strict=True))), format)


def _metadata(files: Sequence[StoredFile], root: str) -> StoredFile | None:
    """The table that lies with the images of a folder."""
    named = {_below(file.url, root): file for file in files}
    return next((named[name] for name in METADATA if name in named), None)


def _of_one_kind(place: Place, files: Sequence[StoredFile]) -> list[StoredFile]:
    for ending in COPIED:
        if found := [file for file in files if file.url.lower().endswith(ending)]:
            return found
    endings = sorted({os.path.splitext(file.url)[1] or "no ending" for file in files})
    raise UsageError(
        f"{place.given} holds no images, tables or tars ({', '.join(endings[:5])}): copy other data here first, such as videos."
    )


def _root(files: Sequence[StoredFile]) -> str:
    """The folder that all files are in."""
    scheme = files[0].url.partition("://")[0]
    folders = [file.url.partition("://")[2].rpartition("/")[0] for file in files]
    return f"{scheme}://{os.path.commonpath(folders)}"


def _below(url: str, root: str) -> str:
    return PurePosixPath(url.removeprefix(root).lstrip("/")).as_posix()
