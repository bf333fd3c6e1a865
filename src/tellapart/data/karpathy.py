"""Karpathy's dataset files (``dataset_coco.json``, ``dataset_flickr30k.json``): images with captions and their
split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.captions import clean, field
from tellapart.data.dataset import Example
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError

MEMBERS = {"train": ("train", "restval")}
"""COCO's ``restval`` images, the rest of its validation set, count as training images in every paper since."""


def is_karpathy(content: Any) -> bool:
    """Whether a parsed file looks like one of these: its images carry sentences."""
    images = content.get("images") if isinstance(content, dict) else None
    return isinstance(images, list) and bool(images) and isinstance(images[0], dict) and "sentences" in images[0]


def read_karpathy(path: Path, content: Any, split: str, images: Path | None) -> list[Example]:
    """The images of one split.

    Files are looked for as ``<root>/<filepath>/<filename>``, then ``<root>/<filename>`` and
    ``<root>/images/<filename>``, where root is ``images`` or the folder of the file; the layout of the first image
    holds for all.

    Raises:
        UsageError: the split is unknown, the images are not found, or a record lacks a field.
    """
    records = field(content, "images", path, "the file", list)
    there = sorted({field(record, "split", path, "an image", str) for record in records})
    wanted = set(MEMBERS.get(split, (split,)))
    chosen = [record for record in records if record["split"] in wanted]
    if not chosen:
        raise UsageError(f"{path} has no split {split!r}, only {', '.join(there)}: choose one of them.")
    for record in chosen:
        field(record, "filename", path, "an image", str)
    root = images or path.parent
    file_of = _layout(root, chosen[0], path)
    files = [file_of(root, record) for record in chosen]
    return [
        Example(_id(record, path), ImageFile(file), _captions(record, path))
        for record, file in zip(chosen, files, strict=True)
    ]


def _nested(root: Path, record: dict[str, Any]) -> Path:
    return root / record.get("filepath", "") / record["filename"]


def _flat(root: Path, record: dict[str, Any]) -> Path:
    return root / record["filename"]


def _in_images(root: Path, record: dict[str, Any]) -> Path:
    return root / "images" / record["filename"]


_LAYOUTS: Sequence[Callable[[Path, dict[str, Any]], Path]] = (_nested, _flat, _in_images)


def _layout(root: Path, record: dict[str, Any], path: Path) -> Callable[[Path, dict[str, Any]], Path]:
    for layout in _LAYOUTS:
        if layout(root, record).is_file():
            return layout
    tried = " or ".join(dict.fromkeys(str(layout(root, record)) for layout in _LAYOUTS))
    raise UsageError(f"{path}: its first image is not at {tried}: give the folder that holds the images.")


def _id(record: dict[str, Any], path: Path) -> str:
    return str(record["cocoid"] if "cocoid" in record else field(record, "imgid", path, "an image"))


def _captions(record: dict[str, Any], path: Path) -> tuple[str, ...]:
    name = f"image {record.get('filename')!r}"
    sentences = field(record, "sentences", path, name, list)
    return clean((field(sentence, "raw", path, f"a sentence of {name}") for sentence in sentences), path, name)
