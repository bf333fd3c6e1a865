"""COCO annotation files: ``{"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.captions import field, texts
from tellapart.data.dataset import Example
from tellapart.data.formats.base import identifier
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.ids import as_number
from tellapart.data.formats.per_split import FilePerSplit
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError
from tellapart.files import write_json


class Coco(FilePerSplit):
    """A file is one split, which its name tells: ``captions_train2017.json``; a folder holds several, or has them in
    ``annotations``.

    By default images are looked for by the file's name, so that ``annotations/captions_train2017.json`` finds
    ``train2017/`` beside ``annotations``.
    """

    name = "coco"
    usual = re.compile(r"^captions")

    @classmethod
    def is_index(cls, content: Any) -> bool:
        """Whether a parsed file's images carry file names."""
        images = content.get("images") if isinstance(content, dict) else None
        return isinstance(images, list) and bool(images) and isinstance(images[0], dict) and "file_name" in images[0]

    def read_file(self, path: Path) -> list[Example]:
        """All images of a file, in its order."""
        content = self.place.content(path)
        records = field(content, "images", path, "the file", list)
        if not records:
            raise UsageError(f"{path} holds no images: check that it is the captions file of the split you want.")
        captions: dict[Any, list[Any]] = {field(record, "id", path, "an image", (int, str)): [] for record in records}
        for annotation in content.get("annotations", []):
            image = field(annotation, "image_id", path, "an annotation", (int, str))
            if image not in captions:
                raise UsageError(
                    f"{path}: annotation {annotation.get('id')} is of image {image!r}, which is not listed."
                )
            captions[image].append(field(annotation, "caption", path, f"annotation {annotation.get('id')}"))
        names = [field(record, "file_name", path, f"image {record['id']}", str) for record in records]
        root = self.place.images or _guess_root(path, names[0])
        return [
            Example(
                identifier(record, "id", path, "an image"),
                ImageFile(root / name),
                texts(captions[record["id"]], path, f"image {record['id']}"),
            )
            for record, name in zip(records, names, strict=True)
        ]

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """``annotations/captions_<split>.json``, and the images in ``<split>``."""
        annotation = 0
        for split, examples in splits.items():
            records, captions = [], []
            for example in examples:
                name = images.put(example, folder / split)
                image_id = as_number(example.id)
                records.append({"id": image_id, "file_name": name})
                for text in example.references:
                    annotation += 1
                    captions.append({"id": annotation, "image_id": image_id, "caption": text})
            write_json(folder / "annotations" / f"captions_{split}.json", {"images": records, "annotations": captions})


def _guess_root(path: Path, name: str) -> Path:
    """The folder in which the first image is found: one named like the file (``captions_val2017`` -> ``val2017``)
    beside the file, beside its folder or under ``images``, else those folders themselves."""
    folder = path.stem.split("_", 1)[-1]
    parents = (path.parent, path.parent.parent, path.parent.parent / "images")
    roots = [parent / folder for parent in parents] + list(parents)
    for root in roots:
        if (root / name).is_file():
            return root
    raise UsageError(
        f"{path}: its first image {name} is neither in {roots[0]} nor in {roots[1]}: "
        "give the folder that holds the images."
    )
