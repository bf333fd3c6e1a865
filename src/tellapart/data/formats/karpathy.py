"""Karpathy's dataset files (``dataset_coco.json``, ``dataset_flickr30k.json``): images with captions and their
split."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tellapart.data.captions import field, require_unicode, texts
from tellapart.data.clips import FrameFiles
from tellapart.data.dataset import Example
from tellapart.data.folder import TRIED, is_file
from tellapart.data.formats.base import InFile, identifier
from tellapart.data.formats.carry import Carrier
from tellapart.data.formats.ids import as_number
from tellapart.data.formats.splits import in_order
from tellapart.data.images import ImageSource
from tellapart.data.json_records import Records
from tellapart.errors import UsageError
from tellapart.files import write_json

FILE = "dataset.json"

FileOf = Callable[[Path, dict[str, Any]], Path]


class Karpathy(InFile):
    """``{"images": [{"filename", "filepath", "split", "cocoid" | "imgid", "sentences": [{"raw"}]}]}``, all splits in one.

    Images are looked for as ``<root>/<filepath>/<filename>``, then ``<root>/<filename>`` and
    ``<root>/images/<filename>``, where root is the given folder of images or the folder of the file; the layout of the
    first image that is there holds for all. A clip whose frames are images has ``"frames": ["0001.jpg", ...]``, in the
    order of time, instead of ``filename``; they lie in ``<root>/<filepath>``.
    """

    name = "karpathy"
    usual = re.compile(r"^dataset")
    spans_splits = True
    links = frozenset({"copy", "symlink", "none"})
    divided = True

    @classmethod
    def is_index(cls, content: Any) -> bool:
        """Whether a parsed file's images carry sentences."""
        images = content.get("images") if isinstance(content, dict) else None
        return (
            isinstance(images, list | Records)
            and bool(images)
            and isinstance(images[0], dict)
            and "sentences" in images[0]
        )

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The images of the file, which all have a split."""
        records = field(self.place.content(self.file), "images", self.file, "the file", (list, Records))
        for record in records:
            require_unicode(field(record, "split", self.file, "an image", str), self.file, "'split' of an image")
        return records

    def splits(self) -> list[str]:
        """The splits that images are of."""
        return in_order(record["split"] for record in self.records)

    def read(self, splits: Sequence[str]) -> list[Example]:
        """Their images in the file's order."""
        chosen = [record for record in self.records if record["split"] in splits]
        for record in chosen:
            if "frames" in record:
                _frames(record, self.file)
                continue
            field(record, "filename", self.file, "an image", str)
            if not isinstance(record.get("filepath", ""), str):
                field(record, "filepath", self.file, "an image", str)
        if not chosen:
            return []
        root = self.place.images or self.file.parent
        whole = [record for record in chosen if "frames" not in record]
        file_of = _nested if self.place.captions_only or not whole else _layout(root, whole, self.file)
        return [
            Example(_id(record, self.file), self._picture(record, root, file_of), _captions(record, self.file))
            for record in chosen
        ]

    def _picture(self, record: dict[str, Any], root: Path, file_of: FileOf) -> ImageSource:
        """An image or a clip: a file, or the frames of ``frames``."""
        if "frames" not in record:
            return self.place.picture(file_of(root, record))
        folder = root / str(record.get("filepath", ""))
        return FrameFiles(tuple(folder / name for name in _frames(record, self.file)))

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """``dataset.json``, and a split's images in ``images/<split>``."""
        records: list[dict[str, Any]] = []
        sentence_id = 0
        for split, examples in splits.items():
            for example in examples:
                record = _record(example, split, len(records), first_sentence=sentence_id)
                record |= _written(example, folder / "images" / split, images)
                sentence_id += len(example.references)
                records.append(record)
        write_json(folder / FILE, {"images": records, "dataset": "coco"})


def _written(example: Example, folder: Path, images: Carrier) -> dict[str, Any]:
    """Write an image or a clip; where it lies, as fields of its record."""
    if isinstance(example.image, FrameFiles):
        return {"frames": images.put_frames(example, example.image, folder)}
    return {"filename": images.put(example, folder)}


def _record(example: Example, split: str, image_id: int, *, first_sentence: int) -> dict[str, Any]:
    sentences = [
        {"tokens": re.findall(r"\w+", text.lower()), "raw": text, "imgid": image_id, "sentid": first_sentence + n}
        for n, text in enumerate(example.references)
    ]
    return {
        "filepath": f"images/{split}",
        "sentids": [sentence["sentid"] for sentence in sentences],
        "imgid": image_id,
        "split": split,
        "sentences": sentences,
        "cocoid": as_number(example.id),
    }


def _nested(root: Path, record: dict[str, Any]) -> Path:
    return root / record.get("filepath", "") / record["filename"]


def _flat(root: Path, record: dict[str, Any]) -> Path:
    return root / record["filename"]


def _in_images(root: Path, record: dict[str, Any]) -> Path:
    return root / "images" / record["filename"]


_LAYOUTS: Sequence[FileOf] = (_nested, _flat, _in_images)


def _frames(record: dict[str, Any], path: Path) -> list[str]:
    """The names of a clip's frames.

    Raises:
        UsageError: they are not a list of names, or there are none.
    """
    name = f"clip {_id(record, path)!r}"
    names = field(record, "frames", path, name, list)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"{path}: 'frames' of {name} is {str(names)[:80]}: give the names of one or more images.")
    return names


def _layout(root: Path, records: Sequence[dict[str, Any]], path: Path) -> FileOf:
    for record in records[:TRIED]:
        for layout in _LAYOUTS:
            if is_file(layout(root, record)):
                return layout
    tried = " or ".join(dict.fromkeys(str(layout(root, records[0])) for layout in _LAYOUTS))
    raise UsageError(f"{path}: its first image is not at {tried}: give the folder that holds the images.")


def _id(record: dict[str, Any], path: Path) -> str:
    return identifier(record, "cocoid" if "cocoid" in record else "imgid", path, "an image")


def _captions(record: dict[str, Any], path: Path) -> tuple[str, ...]:
    name = f"image {record.get('filename')!r}"
    sentences = field(record, "sentences", path, name, list)
    return texts([field(sentence, "raw", path, f"a sentence of {name}") for sentence in sentences], path, name)
