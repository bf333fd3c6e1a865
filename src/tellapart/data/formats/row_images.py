"""The images of rows, of which several may hold captions of one image."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

from tellapart.data.images import ImageError, ImageSource
from tellapart.errors import UsageError

_COMPARED = 16
"""Images that share no name and are compared in each file."""

Image = TypeVar("Image", bound=ImageSource)


class RowImages(Generic[Image]):
    """The first image of each key.

    Args:
        table: what messages call the rows.

    Example:
        >>> images = RowImages(Path("photos.parquet"))
        >>> images.add("7", EncodedImage(data, "7.jpg"), "7.jpg", "row 1")
    """

    def __init__(self, table: Path) -> None:
        self.of: dict[str, Image] = {}
        self._named: dict[str, str | None] = {}
        self._table, self._compared = table, 0

    def add(self, key: str, image: Image, file: str | None, where: str) -> None:
        """Take in a row's image.

        Args:
            key: the image's.
            image: of the row.
            file: what the row calls the image's own file; where two rows of a key do not share it, the bytes of the first few
                are compared.
            where: the row, for the message.

        Raises:
            UsageError: another image has its key.
        """
        first = self.of.setdefault(key, image)
        if first is image:
            self._named[key] = file
            return
        if not self._same(first, self._named[key], image, file):
            raise UsageError(
                f"{self._table}: two different images have the id {key!r}, the later one in {where}: correct the ids, or give "
                "another id_column."
            )

    def _same(self, first: Image, its_file: str | None, image: Image, file: str | None) -> bool:
        if file and file == its_file:
            return True
        self._compared += 1  # each row may have a name of its own for the same bytes
        try:
            return self._compared > _COMPARED or first.read() == image.read()
        except ImageError:  # told where it is opened
            return True
