"""One door to all data on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tellapart.data.captions import read_json, require_files, without_blank_captions
from tellapart.data.coco import is_coco, read_coco
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.folder import EXTENSIONS, from_images, read_folder
from tellapart.data.karpathy import is_karpathy, read_karpathy
from tellapart.errors import UsageError

__all__ = ["Format", "from_images", "load_dataset"]

Format = Literal["karpathy", "coco", "folder"]

_READERS: dict[str, Callable[[Path, Any, str, Path | None], list[Example]]] = {
    "karpathy": read_karpathy,
    "coco": read_coco,
    "folder": read_folder,
}
_LOOKS_LIKE: dict[str, Callable[[Any], bool]] = {"karpathy": is_karpathy, "coco": is_coco}


def load_dataset(
    path: str | Path,
    *,
    split: str,
    images: str | Path | None = None,
    format: Format | None = None,
    limit: int | None = None,
) -> CaptionDataset:
    """The images of one split with their captions. Empty captions are dropped and counted in the log.

    Args:
        path: a Karpathy dataset file, a COCO annotation file, a folder of images (with a ``metadata.jsonl``, if any),
            or one image file.
        split: which split; ``train`` of a Karpathy file includes ``restval``. A COCO file is one split as a whole, and
            so is a folder of images without subfolders named like splits.
        images: folder of the images, when it cannot be guessed from the file.
        format: how to read the path, instead of telling by its look.
        limit: keep only the first so many images.

    Raises:
        UsageError: the path, split or format does not exist, a file is broken (with its line), images are missing, or
            there is nothing in it.
    """
    path, root = Path(path), None if images is None else Path(images)
    for given in (path, root):
        if given is not None and not given.exists():
            raise UsageError(f"{given} does not exist: check the path.")
    if root is not None and not root.is_dir():
        raise UsageError(f"{root} is not a folder: give the folder that holds the images.")
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: keep at least 1 image.")
    if format is None and path.suffix.lower() in EXTENSIONS:
        return from_images(path, name=path.name)
    kind, content = _detect(path) if format is None else _forced(path, format)
    examples = without_blank_captions(_READERS[kind](path, content, split, root)[:limit], path)
    require_files(examples, path)
    return CaptionDataset(examples, name=f"{path.name} ({split})")


def _detect(path: Path) -> tuple[str, Any]:
    """The format by look, and the parsed file where there is one."""
    if path.is_dir():
        return "folder", None
    if path.suffix.lower() != ".json":
        raise UsageError(f"{path} is neither a folder, a .json file nor an image: name one of these.")
    content = read_json(path)
    for kind, looks_like in _LOOKS_LIKE.items():
        if looks_like(content):
            return kind, content
    raise UsageError(
        f"{path} is neither a Karpathy dataset file nor COCO annotations "
        "(no list of images with captions or file names): "
        f"convert it, or name its format, one of {', '.join(_READERS)}."
    )


def _forced(path: Path, kind: str) -> tuple[str, Any]:
    if kind not in _READERS:
        raise UsageError(f"format is {kind!r}: choose one of {', '.join(_READERS)}.")
    if (kind == "folder") != path.is_dir():
        wanted = "a folder" if kind == "folder" else "a .json file"
        raise UsageError(f"{path} is not {wanted}, which format {kind!r} needs: correct the path or the format.")
    return kind, None if kind == "folder" else read_json(path)
