"""What the image's cell of a table names: a path, an address, or a file next to a remote table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tellapart.data.formats.base import Place
from tellapart.data.images import ImageSource
from tellapart.data.remote.addresses import STORES, is_web, require_no_password, scheme_of
from tellapart.data.remote.images import UrlImage
from tellapart.errors import UsageError


def require_text(value: Any, column: str, path: Path, where: str) -> str:
    """The path or address in a cell.

    Raises:
        UsageError: the cell is empty or holds something else.
    """
    if value is None or value == "":
        raise UsageError(f"{path}, {where}: {column!r} is empty: name an image, or remove the line.")
    if not isinstance(value, str):
        raise UsageError(
            f"{path}, {where}: {column!r} is {repr(value)[:80]}, not a path or address of an image: give image_column."
        )
    return value


def image_in(cell: str, root: Path, place: Place, table: Path) -> ImageSource:
    """The image that a cell names.

    Args:
        cell: a path, or an address of HTTP or of an object store.
        root: the folder that paths are relative to, where the table was not copied from elsewhere.
        place: whether private addresses are allowed, and where tables came from.
        table: the file with the cell.

    Raises:
        UsageError: the address is of another kind.
    """
    scheme, base = scheme_of(cell), place.base_of(table)
    if scheme is None and (base is None or place.images is not None):
        return place.picture(root / cell)
    address = cell if scheme is not None else f"{base}/{cell}"
    require_no_password(address)
    if is_web(address):
        return UrlImage(address, place.allow_private)
    if scheme is not None and scheme not in STORES:
        raise UsageError(
            f"a table names the image {cell[:80]!r}: tables may name paths and addresses of http, https, {', '.join(STORES)}."
        )
    from tellapart.data.remote.stores import StoredImage

    return StoredImage(address)
