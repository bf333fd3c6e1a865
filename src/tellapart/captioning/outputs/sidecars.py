"""A text file next to each image, written as captions come."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tellapart.captioning.outputs.base import Output
from tellapart.captioning.records import Caption, Item, Row
from tellapart.data.video import KEY_FRAME, is_video
from tellapart.errors import UsageError
from tellapart.files import REVIEW, remove_half_written, write_bytes

Existing = Literal["keep", "overwrite", "append", "backup"]
_LONGEST_NAME = 255
"""Bytes that disks allow a file's name."""


class Sidecars(Output):
    """``photo.jpg`` gets ``photo.txt``.

    Args:
        place: folder for the sidecars, in which the images' folders are repeated; next to the images if it is theirs.
        extension: ending of a sidecar.
        existing: what becomes of a sidecar that is there: it stays and its image is not captioned, is overwritten, gets
            the new caption as a further line unless it has it, or is first copied to ``photo.txt.bak`` (or ``.bak1``, ...).
        mirrored: write below ``place`` instead of next to the images.
    """

    def __init__(self, place: Path, *, extension: str = ".txt", existing: Existing = "keep", mirrored: bool) -> None:
        super().__init__(place)
        self.extension, self.existing, self.mirrored = extension, existing, mirrored
        self.work = place / "captions.work"
        self.review = place / f"captions{REVIEW}"

    def target(self, item: Item) -> Path:
        """The sidecar of an image."""
        path = self.place / item.relative if self.mirrored else item.path
        assert path is not None, "check refuses images without files"
        video, key_frame, _ = path.name.partition(KEY_FRAME)
        if key_frame and is_video(video):  # what follows its point are milliseconds
            return path.with_name(path.name + self.extension)
        return path.with_suffix(self.extension)

    def check(self, items: Sequence[Item]) -> None:
        """Raise unless every image has a file, a sidecar of its own that is not an image, with a name that disks allow, and a
        folder that can be written to.

        Raises:
            UsageError: naming the image or the folder.
        """
        owner: dict[Path, Item] = {}
        for item in items:
            if item.path is None and not self.mirrored:
                raise UsageError(
                    f"{item.image.name} is not a file, so no sidecar can be written next to it: give --output FOLDER, or --out "
                    "webdataset."
                )
            target = self.target(item)
            _require_short_name(target, item)
            other = owner.setdefault(target, item)
            if other is not item:
                raise UsageError(
                    f"{other.image.name} and {item.image.name} would share the sidecar {target}: rename one, or write "
                    "--out jsonl."
                )
        images = {os.path.abspath(item.path) for item in items if item.path is not None}
        for target, item in owner.items():
            if os.path.abspath(target) in images:
                raise UsageError(
                    f"the sidecar {target} of {item.image.name} would replace an image: give another --caption_extension."
                )
        for folder in {self.place} if self.mirrored else {target.parent for target in owner}:
            if folder.is_dir() and not os.access(folder, os.W_OK):
                raise UsageError(f"{folder} cannot be written to: give --output FOLDER for the sidecars.")

    def exists(self) -> bool:
        """Never: ``existing`` says what becomes of each sidecar."""
        return False

    def holds(self, items: Sequence[Item]) -> bool:
        """Whether every image has its sidecar."""
        return all(self.target(item).is_file() for item in items)

    def written(self, rows: Sequence[Row]) -> list[Path]:
        """The sidecars."""
        return [self.target(item) for item, _ in rows]

    def clean(self, items: Sequence[Item]) -> None:
        """Remove sidecars that a killed run left half-written."""
        names: dict[Path, set[str]] = {self.place: {self.review.name, self.page.name}}
        for target in map(self.target, items):
            names.setdefault(target.parent, set()).add(target.name)
        for folder, those in names.items():
            remove_half_written(folder, those)

    def keeps(self, item: Item, earlier: Caption | None = None) -> bool:
        """Whether the image has a sidecar that is to stay."""
        target = self.target(item)
        if self.existing != "keep" or not target.exists():
            return False
        return earlier is None or not target.is_file() or _read(target) != earlier.caption + "\n"

    def prepare(self, item: Item, caption: Caption) -> Caption:
        """With the digest of the sidecar that is there, and with the whole text, where that is to stay."""
        target = self.target(item)
        if not target.is_file():
            return caption
        caption = replace(caption, replaces=_digest(target))
        if self.existing != "append":
            return caption
        before = _read(target).rstrip("\r\n")
        if caption.caption in before.splitlines():  # of an earlier run
            return replace(caption, text=before)
        return replace(caption, text="\n".join(filter(None, [before, caption.caption]))) if before else caption

    def apply(self, item: Item, caption: Caption) -> None:
        """Write the sidecar, unless it holds the caption already."""
        target, text = self.target(item), (caption.text or caption.caption) + "\n"
        if target.is_file():
            if _read(target) == text:
                return
            if self.existing == "backup":
                _back_up(target)
        write_bytes(target, text.encode("utf-8", errors="surrogateescape"))

    def apply_again(self, item: Item, caption: Caption) -> None:
        """Write the sidecar if it is missing, or is still the one that was there before: another one was written, and perhaps
        edited."""
        target = self.target(item)
        if not target.is_file() or _digest(target) == caption.replaces:
            self.apply(item, caption)

    def assemble(self, rows: Sequence[Row]) -> int:
        """Write the sidecars that somebody removed meanwhile; the others are there."""
        for item, caption in rows:
            if not self.target(item).exists():
                self.apply(item, caption)
        return len(rows)


def _require_short_name(target: Path, item: Item) -> None:
    if len(os.fsencode(target.name)) > _LONGEST_NAME:
        raise UsageError(
            f"the sidecar of {item.image.name} would have a name of more than {_LONGEST_NAME} bytes: rename it, or write "
            "--out jsonl."
        )


def _back_up(path: Path) -> None:
    """Copy the file to the first free name with ``.bak``, unless such a copy is there."""
    data, number = path.read_bytes(), 0
    while (copy := path.with_name(f"{path.name}.bak{number or ''}")).exists():
        if copy.read_bytes() == data:
            return
        number += 1
    write_bytes(copy, data)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _read(path: Path) -> str:
    """The text of any sidecar, line ends as they are; bytes that are not UTF-8 come back when it is written."""
    return path.read_bytes().decode("utf-8", errors="surrogateescape")
