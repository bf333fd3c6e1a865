"""The caption files of BLIP and LAVIS: ``[{"image": "val2014/1.jpg", "caption": "..." | [...], "image_id": ...}]``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.captions import field, texts
from tellapart.data.dataset import Example
from tellapart.data.folder import root_of
from tellapart.data.formats.base import identifier
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.ids import as_number
from tellapart.data.formats.per_split import FilePerSplit
from tellapart.data.formats.splits import SPLIT_IN_NAME, TOGETHER, UNNAMED
from tellapart.errors import UsageError
from tellapart.files import write_json


class Lavis(FilePerSplit):
    """A row per caption in training files, a row per image with a list of captions in others; both are read anywhere.

    An image's id is its ``image_id``, else its path. Images are looked for in the given folder, else in that of the file
    or its ``images``.
    """

    name = "lavis"
    usual = SPLIT_IN_NAME

    @classmethod
    def is_index(cls, content: Any) -> bool:
        """Whether a parsed file is a list of images with captions."""
        first = content[0] if isinstance(content, list) and content else None
        return isinstance(first, dict) and "image" in first and "caption" in first

    def read_file(self, path: Path) -> list[Example]:
        """All images of a file, in the order of their first rows."""
        rows = self.place.content(path)
        if not isinstance(rows, list) or not rows:
            raise UsageError(f"{path} is not a list of images, as format 'lavis' needs: choose another format.")
        captions: dict[str, list[str]] = {}
        files: dict[str, str] = {}
        for number, row in enumerate(rows, start=1):
            where = f"row {number}"
            file = field(row, "image", path, where, str)
            image_id = identifier(row, "image_id", path, where) if "image_id" in row else file
            if files.setdefault(image_id, file) != file:
                raise UsageError(
                    f"{path}: {where} gives id {image_id!r} to {file}, but it is that of {files[image_id]}: correct it."
                )
            captions.setdefault(image_id, []).extend(texts(field(row, "caption", path, where), path, where))
        root = self.place.images or _root(path.parent, files.values())
        return [
            Example(image_id, self.place.picture(root / file), tuple(captions[image_id]))
            for image_id, file in files.items()
        ]

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """``<split>.json``, and the images in ``images/<split>``."""
        for split, examples in splits.items():
            rows: list[dict[str, Any]] = []
            for example in examples:
                name = images.put(example, folder / "images" / split)
                row = {"image": str(Path("images", split, name)), "image_id": as_number(example.id)}
                if split in TOGETHER[UNNAMED] and example.references:
                    rows += [row | {"caption": text} for text in example.references]
                else:
                    rows.append(row | {"caption": list(example.references)})
            write_json(folder / f"{split}.json", rows)


def _root(folder: Path, names: Iterable[str]) -> Path:
    """``folder``, or the one in it or next to it in which the first image is found."""
    roots = (folder, folder / "images", folder.parent, folder.parent / "images")
    return root_of(names, roots) or folder
