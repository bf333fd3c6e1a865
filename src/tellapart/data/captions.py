"""What all readers share: reading JSON with an address for every mistake, and cleaning captions."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.dataset import Example
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError

logger = logging.getLogger(__name__)


def read_json(path: Path) -> Any:
    """The parsed file.

    Raises:
        UsageError: it cannot be read or is not JSON; the sentence names the line.
    """
    return parse_json(read_text(path), path)


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        UsageError: it cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): convert it to UTF-8.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from error


def parse_json(text: str, path: Path, *, line: int = 1) -> Any:
    """``text`` as JSON, where its first line is line ``line`` of the file.

    Raises:
        UsageError: it is not JSON.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply to be read: check that it is the right file.") from error
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise UsageError(
            f"{path}, {where}: not valid JSON ({error.msg}): repair or download the file again."
        ) from error


def field(record: Any, key: str, path: Path, what: str, kind: type | tuple[type, ...] = object) -> Any:
    """``record[key]``.

    Raises:
        UsageError: the record is not an object with this key, or the value is not of this kind.
    """
    if not isinstance(record, dict) or key not in record:
        raise UsageError(f"{path}: {what} has no {key!r} ({str(record)[:80]}): add it, or choose another format.")
    if not isinstance(record[key], kind):
        raise UsageError(
            f"{path}: {key!r} of {what} is {repr(record[key])[:80]}: correct it, or choose another format."
        )
    return record[key]


def clean(captions: Iterable[Any], path: Path, what: str) -> tuple[str, ...]:
    """Captions without space around them, in order, blank ones included.

    Raises:
        UsageError: one is not a string.
    """
    found = tuple(captions)
    for caption in found:
        if not isinstance(caption, str):
            raise UsageError(f"{path}: a caption of {what} is {caption!r}: captions must be strings.")
    return tuple(caption.strip() for caption in found)


def without_blank_captions(examples: Sequence[Example], path: Path) -> list[Example]:
    """The examples without references that are empty; their number is logged.

    Raises:
        UsageError: there are captions, but all of them are blank.
    """
    kept = [Example(e.id, e.image, tuple(text for text in e.references if text)) for e in examples]
    before, after = (sum(len(e.references) for e in rows) for rows in (examples, kept))
    if before and not after:
        raise UsageError(f"{path}: all {before} captions are empty: check which field holds the captions.")
    if after < before:
        logger.warning("%s: dropped %d of %d captions because they are empty.", path, before - after, before)
    return kept


def require_files(examples: Sequence[Example], path: Path) -> None:
    """Raise unless the file of every image exists.

    Raises:
        UsageError: naming the first missing file and how many there are.
    """
    files = [example.image.path for example in examples if isinstance(example.image, ImageFile)]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UsageError(
            f"{path} names {len(missing)} images (of {len(files)}) that do not exist, first {missing[0]}: "
            "give the folder that holds the images, or limit how many are read."
        )
