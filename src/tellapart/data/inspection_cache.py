"""What inspections found, on disk: images that were readable and have not changed need not be decoded again.

One file for each folder that images come from, so that all data sets of the same images share it. Files are known by
path, size and time of change, images in archives by these of the archive, all others by content. Broken images are not
remembered: they may have been out of reach only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart.data.decoding import max_pixels
from tellapart.data.images import ImageError, ImageFile, ImageSource, PackedImage
from tellapart.data.inspection import Inspected
from tellapart.data.phash import Signature
from tellapart.files import cache_dir, write_text

logger = logging.getLogger(__name__)

VERSION = 1
"""To be raised when images are decoded, described or hashed otherwise."""


@dataclass(frozen=True)
class InspectionCache:
    """The file of findings that belongs to some images.

    Args:
        path: the file.
        keys: position of an image -> what it is known by; images that cannot be told apart have none.
    """

    path: Path
    keys: Mapping[int, str]

    @classmethod
    def of(cls, images: Sequence[ImageSource]) -> InspectionCache:
        """The cache that belongs to these images."""
        files = [file for image in images if (file := _file(image)) is not None]
        folders = sorted({str(file.absolute().parent) for file in files})
        root = os.path.commonpath(folders) if folders else "content"
        name = hashlib.sha256(f"{VERSION} {max_pixels()} {root}".encode()).hexdigest()[:32]
        keys = {i: key for i, image in enumerate(images) if (key := _key(image)) is not None}
        return cls(cache_dir() / "images" / f"{name}.json", keys)

    def load(self) -> dict[int, Inspected]:
        """Position -> what is known of the image."""
        rows = self._rows()
        try:
            return {i: _inspected(rows[key]) for i, key in self.keys.items() if key in rows}
        except (TypeError, ValueError, LookupError):  # rows of somebody else
            return {}

    def add(self, found: Mapping[int, Inspected]) -> None:
        """Remember images by position, broken ones excepted."""
        new = {self.keys[i]: _row(what) for i, what in found.items() if what.broken is None and i in self.keys}
        if not new:
            return
        try:
            write_text(self.path, json.dumps(self._rows() | new))
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s): the images are decoded again next time.", self.path, error.strerror
            )

    def _rows(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # none yet, or damaged
            return {}


def _file(image: ImageSource) -> Path | None:
    """The file that holds the image."""
    if isinstance(image, ImageFile):
        return image.path
    return image.archive if isinstance(image, PackedImage) else None


def _key(image: ImageSource) -> str | None:
    file = _file(image)
    try:
        if file is None:
            return f"content {image.fingerprint()}"
        found = file.stat()
    except (OSError, ValueError, ImageError):
        return None
    part = f"{image.offset} {image.size} {image.member}" if isinstance(image, PackedImage) else ""
    return f"{file.absolute()} {found.st_size} {found.st_mtime_ns} {part}"


def _row(found: Inspected) -> list[Any]:
    look = found.signature
    shown = None if look is None else [f"{look.hash:016x}", base64.b64encode(look.thumbnail).decode()]
    return [list(found.kinds), found.content, shown]


def _inspected(row: Any) -> Inspected:
    kinds, content, shown = row
    look = None if shown is None else Signature(int(shown[0], 16), base64.b64decode(shown[1]))
    return Inspected(None, tuple(kinds), content, look)
