"""COCO annotation files: ``{"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.captions import field, texts
from tellapart.data.clips import on_disk
from tellapart.data.dataset import Example, PackedExamples
from tellapart.data.folder import root_of
from tellapart.data.formats.base import identifier
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.ids import as_number
from tellapart.data.formats.per_split import FilePerSplit
from tellapart.data.gathered import GatheredCaptions
from tellapart.data.json_records import Records
from tellapart.errors import UsageError
from tellapart.files import write_json
from tellapart.packed import TextLists, Texts


class Coco(FilePerSplit):
    """A file is one split, which its name tells: ``captions_train2017.json``; a folder holds several, or has them in
    ``annotations``.

    By default images are looked for by the file's name, so that ``annotations/captions_train2017.json`` finds
    ``train2017/`` next to ``annotations``.
    """

    name = "coco"
    usual = re.compile(r"^captions")

    @classmethod
    def is_index(cls, content: Any) -> bool:
        """Whether a parsed file's images carry file names, or its annotations captions."""
        if not isinstance(content, dict):
            return False
        image, annotation = (_first(content.get(key)) for key in ("images", "annotations"))
        return "file_name" in image or ("image_id" in annotation and "caption" in annotation)

    def read_file(self, path: Path) -> Sequence[Example]:
        """All images of a file, in its order."""
        content = self.place.content(path)
        if not isinstance(content, dict):
            raise UsageError(f"{path} is not a JSON object with 'images' and 'annotations': choose another format.")
        if "annotations" in content:
            field(content, "annotations", path, "the file", (list, Records))
        bare = self.place.captions_only and not content.get("images")
        records = _of_annotations(content) if bare else field(content, "images", path, "the file", (list, Records))
        if not records:
            raise UsageError(f"{path} holds no images: check that it is the captions file of the split you want.")
        ids = Texts.of(identifier(record, "id", path, "an image") for record in records)
        captions = _captions(content.get("annotations", []), ids, path)
        names = Texts.of(_file_name(record, path, needed=not self.place.captions_only) for record in records)
        root = self.place.images or (path.parent if self.place.captions_only else _guess_root(path, names))
        sampling = self.place.sampling  # the place itself holds the parsed file
        found = PackedExamples(ids, captions, names, lambda name: on_disk(root / name, sampling))
        return found if self.place.captions_only else list(found)

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


def _captions(annotations: Sequence[Any], ids: Texts, path: Path) -> TextLists:
    """The captions of each image."""
    found = GatheredCaptions()
    for image in ids:
        found.add(image, ())
    for number, annotation in enumerate(annotations, start=1):
        what = f"annotation {number}"
        image = identifier(annotation, "image_id", path, what)
        if image not in found.places:
            raise UsageError(f"{path}: {what} is of image {image!r}, which is not listed: correct or remove it.")
        found.add(image, texts([field(annotation, "caption", path, what)], path, f"image {image}"))
    return found.packed().take(np.fromiter(map(found.places.__getitem__, ids), np.int64, len(ids)))


def _first(records: Any) -> dict[str, Any]:
    """The first of a list of records, or an empty one where there is none."""
    first = records[0] if isinstance(records, list | Records) and records else None
    return first if isinstance(first, dict) else {}


def _of_annotations(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The images that captions are of, where they are not listed."""
    ids = [annotation.get("image_id") for annotation in content.get("annotations", ()) if isinstance(annotation, dict)]
    known = dict.fromkeys(image_id for image_id in ids if isinstance(image_id, int | str))  # others are refused later
    return [{"id": image_id} for image_id in known]


def _file_name(record: Any, path: Path, *, needed: bool) -> str:
    """The image's file; where it is not needed, the reference tool's own files do without: the id replaces it."""
    there = needed or "file_name" in record
    return str(field(record, "file_name", path, f"image {record['id']}", str) if there else record["id"])


def _guess_root(path: Path, names: Sequence[str]) -> Path:
    """The folder in which the first image is found: one named like the file (``captions_val2017`` -> ``val2017``)
    next to the file, next to its folder or under ``images``, else those folders themselves."""
    folder = path.stem.split("_", 1)[-1]
    parents = (path.parent, path.parent.parent, path.parent.parent / "images")
    roots = [parent / folder for parent in parents] + list(parents)
    if (root := root_of(names, roots)) is not None:
        return root
    raise UsageError(
        f"{path}: its first image {names[0]} is neither in {roots[0]} nor in {roots[1]}: "
        "give the folder that holds the images."
    )
