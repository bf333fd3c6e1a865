"""Image ids in files: as numbers where a format has numbers, and as file names that survive every disk and archive."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from urllib.parse import unquote

from tellapart.data.formats.splits import SPLIT_NAMES
from tellapart.errors import UsageError

FORBIDDEN = frozenset('%/\\:*?"<>|#')
"""Never part of a file name that we write: some file system, shell or format gives them a meaning."""

LONGEST = 200
"""Bytes of a file name without its ending; disks allow 255."""

_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)


def as_number(image_id: str) -> int | str:
    """The id as a whole number where reading it back gives the same id, else itself."""
    return int(image_id) if _NUMBER.fullmatch(image_id) else image_id


def image_id(path: Path) -> str | int:
    """The id that COCO's tools know an image by: the number in COCO's file names, else the name without its ending."""
    numbered = re.fullmatch(r"(?:COCO_\w+_)?(\d{12})", path.stem)
    return int(numbered[1]) if numbered else path.stem


def encode_id(image_id: str) -> str:
    """An id as a relative path without ending: ``/`` makes folders, what is unsafe in a name is percent-encoded.

    Raises:
        UsageError: it is too long for a file name, or empty.
    """
    parts = image_id.split("/")
    if not all(parts) or parts[0] in SPLIT_NAMES:
        parts = [image_id]  # no folder has an empty name, and one named like a split would be taken for it
    # A folder keeps no dot, so that it never meets a file, which always has one.
    names = [*(_encode(part, unsafe=FORBIDDEN | {"."}) for part in parts[:-1]), _encode(parts[-1], unsafe=FORBIDDEN)]
    longest = max(len(name.encode()) for name in names)
    if not image_id or longest > LONGEST:
        what = f"too long for a file name ({longest} bytes)" if image_id else "empty"
        raise UsageError(
            f"image id {image_id[:60]!r} is {what}: convert to a format that keeps ids in a file, such as folder or coco."
        )
    return "/".join(names)


def decode_id(stem: str) -> str:
    """The id of a relative path without ending: decoded if we would have encoded it so, else unchanged."""
    try:
        image_id = unquote(stem, errors="strict")
        return image_id if encode_id(image_id) == stem else stem
    except (UnicodeError, UsageError):
        return stem


def _encode(text: str, *, unsafe: frozenset[str]) -> str:
    if text.isascii() and text.replace("_", "a").replace("-", "a").isalnum():
        return text
    composed = unicodedata.is_normalized("NFC", text)  # disks may turn one form into the other
    kept = [c.isprintable() and c not in unsafe and (composed or c.isascii()) for c in text]
    kept[0] = kept[0] and text[0] not in ". "
    return "".join(c if keep else _percent(c) for c, keep in zip(text, kept, strict=True))


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
