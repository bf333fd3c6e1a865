"""Folders of images, with or without a ``metadata.jsonl``, and plain lists of image files."""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.captions import clean, field, parse_json, read_text
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError

logger = logging.getLogger(__name__)

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})
METADATA = "metadata.jsonl"
CAPTION_KEYS = ("text", "caption", "captions")

SPLIT_FOLDERS = {
    "train": ("train",),
    "val": ("val", "validation", "valid", "dev"),
    "validation": ("validation", "val", "valid", "dev"),
    "test": ("test",),
}
"""Names under which a split's own folder is looked for, in the manner of Hugging Face's imagefolder."""


def read_folder(path: Path, content: Any, split: str, images: Path | None) -> list[Example]:
    """All images below a folder, sorted by path; an image's id is its path relative to the folder.

    If the folder has subfolders named like splits, only that of ``split`` is read. Captions come from the lines of a
    ``metadata.jsonl``: ``{"file_name": ..., "text" | "caption": "..."}`` or ``{"file_name": ..., "captions": [...]}``.

    Raises:
        UsageError: there are no images, the split has no folder, or a line of the metadata is wrong.
    """
    root = _split_folder(images or path, split)
    files = find_images(root)
    if not files:
        raise UsageError(f"{root} holds no images ({', '.join(sorted(EXTENSIONS))}): check the path.")
    named = {file.relative_to(root).as_posix(): file for file in files}
    captions = _metadata(root / METADATA, named)
    bare = len(named.keys() - captions.keys())
    # ids keep the split's folder, so that those of two splits differ
    start = images or path
    examples = [
        Example(file.relative_to(start).as_posix(), ImageFile(file), captions.get(name, ()))
        for name, file in named.items()
    ]
    if captions and bare:
        logger.warning("%s: %d of %d images are not in %s and have no captions.", root, bare, len(examples), METADATA)
    return examples


def find_images(root: Path) -> list[Path]:
    """Image files below ``root``, sorted; hidden files and folders are passed over."""
    found = []
    for folder, subfolders, names in os.walk(root, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(folder, n) for n in names if Path(n).suffix.lower() in EXTENSIONS and not n.startswith(".")]
    return sorted(found)


def from_images(paths: str | Path | Iterable[str | Path], *, name: str = "images") -> CaptionDataset:
    """Image files (or folders of them) without references, in the order given; ids are the paths as given.

    Raises:
        UsageError: a path does not exist or is no image file, or there are none.
    """
    examples: list[Example] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        file = Path(path)
        if not file.exists():
            raise UsageError(f"{file} does not exist: check the path.")
        if file.is_file() and file.suffix.lower() not in EXTENSIONS:
            raise UsageError(f"{file} is not an image file: expected one of {', '.join(sorted(EXTENSIONS))}.")
        examples += [Example(f.as_posix(), ImageFile(f)) for f in (find_images(file) if file.is_dir() else [file])]
    return CaptionDataset(examples, name=name)


def _split_folder(root: Path, split: str) -> Path:
    known = {name for names in SPLIT_FOLDERS.values() for name in names}
    there = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and entry.name in known)
    for name in SPLIT_FOLDERS.get(split, (split,)):
        if (root / name).is_dir():
            return root / name
    if there:
        raise UsageError(f"{root} has no split {split!r}, only {', '.join(there)}: choose one of them.")
    return root


def _metadata(path: Path, images: Container[str]) -> dict[str, tuple[str, ...]]:
    """File name -> captions; a file named in several lines has them all."""
    if not path.is_file():
        return {}
    captions: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        row, where = parse_json(line, path, line=number), f"line {number}"
        name = Path(str(field(row, "file_name", path, where))).as_posix()
        if name not in images:
            raise UsageError(f"{path}, line {number}: {name} is no image in its folder: correct or remove the line.")
        captions[name] = captions.get(name, ()) + clean(_row_captions(row, path, where), path, where)
    return captions


def _row_captions(row: dict[str, Any], path: Path, where: str) -> Sequence[Any]:
    for key in CAPTION_KEYS:
        if key in row:
            return row[key] if isinstance(row[key], list) else [row[key]]
    raise UsageError(
        f"{path}: {where} has none of {', '.join(map(repr, CAPTION_KEYS))}: add a caption or an empty list."
    )
