"""Images found by their ids: the id of an image is its path in a folder without ending."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tellapart.data.folder import below, find_pictures
from tellapart.data.formats.ids import decode_id
from tellapart.errors import UsageError


def stem_of(file: Path, root: Path) -> str:
    """An image's path below ``root`` without ending."""
    return os.path.splitext(below(file, root))[0]


def by_stem(files: Iterable[Path], root: Path) -> dict[str, Path]:
    """Path without ending -> image.

    Raises:
        UsageError: two images differ in their ending only.
    """
    found: dict[str, Path] = {}
    for file in files:
        stem = stem_of(file, root)
        if found.setdefault(stem, file) != file:
            raise UsageError(f"{found[stem]} and {file} differ in their ending only: rename one, or move it away.")
    return found


class Finder:
    """Finds images by id.

    Args:
        stems: path without ending -> image.
    """

    def __init__(self, stems: Mapping[str, Path]) -> None:
        named: dict[str, Path] = {}
        others: dict[str, Path] = {}
        for stem, file in stems.items():
            if named.setdefault(Path(stem).name, file) != file:
                others[Path(stem).name] = file
        whole = {**stems, **{decode_id(stem): file for stem, file in stems.items()}}
        self._by_id, self._others = named | whole, {name: file for name, file in others.items() if name not in whole}

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._by_id

    def find(self, image_id: str, path: Path) -> Path:
        """The image of this id, or of this name in a subfolder.

        Raises:
            UsageError: there is none, or several subfolders have one of this name.
        """
        if image_id not in self._by_id:
            raise UsageError(f"{path}: there is no image named {image_id!r}: give the folder that holds the images.")
        if image_id in self._others:
            raise UsageError(
                f"{path}: {image_id!r} is the name of {self._by_id[image_id]} and of {self._others[image_id]}: write the folder "
                "before the name."
            )
        return self._by_id[image_id]


def names_an_image(content: Mapping[str, object], root: Path) -> bool:
    """Whether the first key names an image below ``root``, by its path or without ending."""
    first = next(iter(content))
    return (root / first).is_file() or first in Finder({stem_of(file, root): file for file in find_pictures(root)})
