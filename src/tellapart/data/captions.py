"""Shared by all readers: reading text and JSON with an address for every mistake, and checking captions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.clips import FrameFiles
from tellapart.data.dataset import Example, PackedExamples
from tellapart.data.folder import is_file
from tellapart.data.images import ImageFile
from tellapart.errors import UsageError, count_of

logger = logging.getLogger(__name__)


def read_json(path: Path) -> Any:
    """The parsed file.

    Raises:
        UsageError: it cannot be read or is not JSON; the sentence names the line.
    """
    return parse_json(read_text(path), path)


def read_unique(path: Path) -> dict[str, Any]:
    """The parsed file, an object of which no key may come twice.

    Raises:
        UsageError: it cannot be read, is not a JSON object, or names a key twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise UsageError(f"{path} names {twice!r} more than once: keep one of them.")
        return found

    content = parse_json(read_text(path), path, pairs=unique)
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not an object of images: choose another format.")
    return content


def read_text(path: Path) -> str:
    """The file's text, line ends as they are, without a byte order mark.

    Raises:
        UsageError: it cannot be read or is not UTF-8.
    """
    try:
        return decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from error


def decoded(data: bytes, name: str) -> str:
    """UTF-8 bytes as text, without a byte order mark.

    Raises:
        UsageError: they are not UTF-8; the sentence names the line.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name} is not UTF-8 text (line {line}, byte {error.start}): convert it to UTF-8.") from error


def parse_json(
    text: str, path: Path, *, line: int = 1, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """``text`` as JSON, where its first line is line ``line`` of the file; ``pairs`` makes objects of their members.

    Raises:
        UsageError: it is not JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply to be read: check that it is the right file.") from error
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise UsageError(
            f"{path}, {where}: not valid JSON ({error.msg}): repair or download the file again."
        ) from error
    except ValueError as error:  # a number of thousands of digits
        raise UsageError(
            f"{path} holds a number with more digits than can be read: check that it is the right file."
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


def require_id(value: Any, path: Path | str, what: str, *, key: str = "image_id") -> None:
    """Raise for an id that is neither text nor a whole number.

    Raises:
        UsageError: naming the file and the record.
    """
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise UsageError(f"{path}: {key!r} of {what} is {value!r}: it must be text or a whole number, such as 42.")
    if isinstance(value, str):
        require_unicode(value, Path(path), f"{key!r} of {what}")


def texts(captions: Any, path: Path, what: str) -> tuple[str, ...]:
    """Captions unchanged, in order: those of a list, or the one that a string is.

    Raises:
        UsageError: one is not a string.
    """
    found = tuple(captions) if isinstance(captions, list | tuple) else (captions,)
    for caption in found:
        if not isinstance(caption, str):
            raise UsageError(f"{path}: a caption of {what} is {repr(caption)[:80]}: captions must be strings.")
        require_unicode(caption, path, f"a caption of {what}")
    return found


def require_unicode(text: str, path: Path, what: str) -> None:
    r"""Raise if the text holds half a character, as JSON can (``"\ud83d"``) and no tokenizer or file takes.

    Raises:
        UsageError: naming it.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{path}: {what} is not valid Unicode ({text[:60]!r}, character {error.start + 1}): correct it."
            ) from error


def without_blank_captions(examples: Sequence[Example], path: Path) -> Sequence[Example]:
    """The examples without references that are empty or only space; their number is logged.

    Raises:
        UsageError: there are captions, but all of them are blank.
    """
    before = after = 0
    for own in _captions(examples):
        before += len(own)
        after += sum(bool(text.strip()) for text in own)
    if before and not after:
        raise UsageError(f"{path}: all {before} captions are empty: check which field holds the captions.")
    if after < before:
        logger.warning("%s: dropped %d of %d captions because they are empty.", path, before - after, before)
    if isinstance(examples, PackedExamples):
        return examples if after == before else examples.without_blank_captions()
    return [Example(e.id, e.image, tuple(text for text in e.references if text.strip())) for e in examples]


def _captions(examples: Sequence[Example]) -> Iterable[Sequence[str]]:
    if isinstance(examples, PackedExamples):
        return examples.captions
    return (example.references for example in examples)


def _files(example: Example) -> Sequence[Path]:
    image = example.image
    return image.paths if isinstance(image, FrameFiles) else [image.path] if isinstance(image, ImageFile) else ()


def require_files(examples: Sequence[Example], path: Path) -> None:
    """Raise unless the file of every image exists.

    Raises:
        UsageError: naming the first missing file and how many there are.
    """
    files = [file for example in examples for file in _files(example)]
    missing = [file for file in files if not is_file(file)]
    if missing:
        raise UsageError(
            f"{path} names {count_of(len(missing), 'missing image')} (of {len(files)}), first {missing[0]}: "
            "give the folder that holds the images, or limit how many are read."
        )
