"""COCO annotation files: ``{"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tellapart.data.captions import clean, field
from tellapart.data.dataset import Example
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError


def is_coco(content: Any) -> bool:
    """Whether a parsed file looks like one of these: its images carry file names."""
    images = content.get("images") if isinstance(content, dict) else None
    return isinstance(images, list) and bool(images) and isinstance(images[0], dict) and "file_name" in images[0]


def read_coco(path: Path, content: Any, split: str, images: Path | None) -> list[Example]:
    """All images of the file with their captions; such a file *is* one split, so ``split`` only names it.

    Args:
        path: the annotation file.
        content: the file, parsed.
        split: name of the split.
        images: folder of the images; by default guessed from the file's name, so that
            ``annotations/captions_train2017.json`` finds ``train2017/`` beside ``annotations``.

    Raises:
        UsageError: the images are not found, the annotations are not captions, or a record lacks a field.
    """
    records = field(content, "images", path, "the file", list)
    if not records:
        raise UsageError(f"{path} holds no images: check that it is the captions file of the split you want.")
    captions: dict[Any, list[Any]] = {field(record, "id", path, "an image", (int, str)): [] for record in records}
    for annotation in content.get("annotations", []):
        image = field(annotation, "image_id", path, "an annotation", (int, str))
        if image not in captions:
            raise UsageError(f"{path}: annotation {annotation.get('id')} is of image {image!r}, which is not listed.")
        captions[image].append(field(annotation, "caption", path, f"annotation {annotation.get('id')}"))
    names = [field(record, "file_name", path, f"image {record['id']}", str) for record in records]
    root = images or _guess_root(path, names[0])
    files = [root / name for name in names]
    return [
        Example(str(record["id"]), ImageFile(file), clean(captions[record["id"]], path, f"image {record['id']}"))
        for record, file in zip(records, files, strict=True)
    ]


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
