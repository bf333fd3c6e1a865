"""Base class of all forms of output, and the row of an image in it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tellapart.captioning.records import Caption, Item, Row
from tellapart.data.formats.ids import as_number, image_id
from tellapart.files import REVIEW, remove_half_written


class Output(ABC):
    """Where captions go.

    Args:
        place: the file or folder that is written.

    Attributes:
        work: the work folder of the run that writes it.
        review: the list of captions to look at.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        named = Path(os.path.abspath(place))  # the folder where we are, for one, has no name in "."
        beside = named.parent if place.name in ("", "..") else place.parent
        self.work = beside / f"{named.name}.work"
        self.review = beside / f"{named.name}{REVIEW}"

    @property
    def page(self) -> Path:
        """The page of the captions to look at, with their images."""
        return self.review.with_suffix(".html")

    def check(self, items: Sequence[Item]) -> None:
        """Raise, before anything is drawn, if these images cannot be written so.

        Raises:
            UsageError: naming the image or the place.
        """
        return

    def exists(self) -> bool:
        """Whether there is something that would be replaced."""
        return self.place.exists()

    def holds(self, items: Sequence[Item]) -> bool:
        """Whether what a finished run wrote is still there."""
        return self.place.exists()

    def written(self, rows: Sequence[Row]) -> list[Path]:
        """The files that hold these captions."""
        return [self.place]

    def keeps(self, item: Item, earlier: Caption | None = None) -> bool:
        """Whether the image has a caption already, which is to stay.

        Args:
            item: the image.
            earlier: what this run wrote for another image of its name, which does not count.
        """
        return False

    def prepare(self, item: Item, caption: Caption) -> Caption:
        """The caption with what ``apply`` will need; called before it is journalled."""
        return caption

    def apply(self, item: Item, caption: Caption) -> None:
        """Write what belongs to this image alone; called after it was journalled."""
        return

    def apply_again(self, item: Item, caption: Caption) -> None:
        """Write it if a kill came between journal and ``apply``; what was written then, and changed since, is left as it is."""
        self.apply(item, caption)

    def clean(self, items: Sequence[Item]) -> None:
        """Remove what a killed run left half-written."""
        remove_half_written(self.place.parent, {self.place.name, self.review.name, self.page.name})

    @abstractmethod
    def assemble(self, rows: Sequence[Row]) -> int:
        """Write the whole from all images that have a caption, in the order of the input; how many captions it holds."""


def record(item: Item, caption: Caption, base: Path) -> dict[str, Any]:
    """An image's row: id, file name, caption, and what is known of it beyond.

    The file name is relative to ``base`` for images below it, so that a ``metadata.jsonl`` among them is one that other
    tools read; else it is absolute.
    """
    row: dict[str, Any] = {"id": item.id, "file_name": file_name(item, base), "caption": caption.caption}
    row |= {
        name: value for name in ("score", "match", "margin", "rival") if (value := getattr(caption, name)) is not None
    }
    row |= {"flags": list(caption.flags)} if caption.flags else {}
    if caption.candidates:
        row["candidates"] = [
            {"caption": text} | ({} if score is None else {"score": score}) for text, score in caption.candidates
        ]
    return row


def file_name(item: Item, base: Path) -> str:
    """The image's file as seen from the folder ``base``; of an image without one, what messages call it."""
    if item.path is None:
        return item.image.name
    path, folder = Path(os.path.abspath(item.path)), Path(os.path.abspath(base))
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()


def image_ids(items: Sequence[Item]) -> list[str | int]:
    """COCO's ids of images, all different: that of the file, or of the data set; the item's own where two share one."""
    ids = [_own_id(item) for item in items]
    often: dict[str | int, int] = {}
    for known in ids:
        often[known] = often.get(known, 0) + 1
    return [known if often[known] == 1 else item.id for known, item in zip(ids, items, strict=True)]


def _own_id(item: Item) -> str | int:
    if item.path is not None and item.id == str(item.path):
        return image_id(item.path)
    return as_number(item.id)
