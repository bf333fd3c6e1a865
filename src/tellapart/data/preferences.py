"""Pairs of captions of which one is preferred, in the layouts that preference data are published in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart.data.captions import read_json
from tellapart.data.dataset import CaptionDataset, ids_named
from tellapart.data.formats.rows import json_rows
from tellapart.data.parquet import opened
from tellapart.errors import UsageError

IMAGE_FIELDS = ("image_id", "file_name", "image_path", "image", "images")
"""Fields that name the image, the first that is there counts."""

LAYOUTS = "rows of an image, chosen and rejected, as .jsonl, .json or .parquet (docs/reference/methods/preferences.md)"


@dataclass(frozen=True)
class PreferencePair:
    """Two captions of one image.

    Args:
        chosen: the preferred caption.
        rejected: the other one.
    """

    chosen: str
    rejected: str


Preferences = Mapping[str, Sequence[PreferencePair]]
"""Image id -> its pairs."""


def read_preferences(path: Path) -> dict[str, list[PreferencePair]]:
    """Pairs by what the file calls their image.

    Read are TRL's columns (``images`` or ``image``, ``chosen``, ``rejected``; text, or messages of which the last one counts),
    RLHF-V's (``image_path`` or ``image``, and ``text``: JSON with ``chosen`` and ``rejected``), and what ``tellapart judge
    --export preferences`` writes. Prompts are ignored: the captioner has its own. Pairs of equal captions are left out.

    Raises:
        UsageError: the file cannot be read, a row lacks a field, or there is no pair.

    Example:
        >>> read_preferences(Path("preferences.jsonl"))["42"]
        [PreferencePair(chosen='a red car', rejected='a car')]
    """
    found: dict[str, list[PreferencePair]] = {}
    for number, row in _rows(path):
        try:
            if not isinstance(row, Mapping):
                raise TypeError("it is not an object")
            image, pair = _image(row), _pair(row)
        except (KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
            raise UsageError(f"row {number} of {path} is not a preference ({error!r}): give {LAYOUTS}.") from error
        if pair.chosen != pair.rejected:
            found.setdefault(image, []).append(pair)
    if not found:
        raise UsageError(f"{path} holds no pair of different captions: give {LAYOUTS}.")
    return found


def preferences_of(
    pairs: Mapping[str, Sequence[PreferencePair]], dataset: CaptionDataset
) -> dict[str, list[PreferencePair]]:
    """Image id -> its pairs, of images in ``dataset``: found by id, else by file name, else by file name without ending.

    Raises:
        UsageError: none of the pairs is of an image of the data set, or a name is that of several images.
    """
    found: dict[str, list[PreferencePair]] = {}
    for name, image in ids_named(pairs, dataset, "preferences", field="image_id").items():
        found.setdefault(image, []).extend(pairs[name])
    if not found:
        raise UsageError(
            f"none of the {len(pairs)} images with preferences (first {next(iter(pairs))!r}) is an image of {dataset.name}: name "
            "the data that the preferences are about."
        )
    return found


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """The rows, and their numbers: in JSON lines those of the lines."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        with opened(path) as file:
            batches = file.iter_batches(batch_size=256)  # a few hundred, since rows may hold images
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
    elif suffix in (".jsonl", ".ndjson"):
        yield from json_rows(path)
    else:
        value = read_json(path)
        if not isinstance(value, list):
            raise UsageError(f"{path} is not a list of rows: give {LAYOUTS}.")
        yield from enumerate(value, 1)


def _image(row: Mapping[str, Any]) -> str:
    """The row's name of its image: a field of text or a number, the path of an image column, or the first of several."""
    for name in IMAGE_FIELDS:
        value = row.get(name)
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, dict):
            value = value.get("path")
        if isinstance(value, str | int):
            return str(value)
    raise KeyError(f"the image's name, as one of {', '.join(IMAGE_FIELDS)}")


def _pair(row: Mapping[str, Any]) -> PreferencePair:
    fields = row if "chosen" in row else json.loads(row["text"])
    return PreferencePair(_text(fields["chosen"]), _text(fields["rejected"]))


def _text(value: Any) -> str:
    """A caption as text, as messages, or as parts of a message."""
    if isinstance(value, str):
        return " ".join(value.split())
    last = value[-1]
    content = last["content"] if "content" in last else last["text"]
    return _text(content)
