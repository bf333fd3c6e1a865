"""Finding the sets of judgements in a file or folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tellapart.data.judgements.layouts import LAYOUTS, References
from tellapart.data.judgements.records import Judgements
from tellapart.errors import UsageError

ENDINGS = (".txt", ".json", ".jsonl", ".csv", ".parquet")


def read_judgements(path: Path, *, references: References | None = None) -> list[Judgements]:
    """The sets of a file, or of all files below a folder; files of pairs of one set are joined.

    Args:
        path: a file, or a folder.
        references: human captions by the image's file name or number, for files that have none (THumB's own, SugarCrepe).

    Raises:
        UsageError: nothing there is a set of judgements, a file is broken, or a set of ratings is there twice.

    Example:
        >>> [(one.name, len(one.rated)) for one in read_judgements(Path("Flickr8k_text/ExpertAnnotations.txt"))]
        [('flickr8k-expert', 5664)]
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist: name a file or folder of judgements.")
    files = sorted(file for file in path.rglob("*") if file.suffix in ENDINGS) if path.is_dir() else [path]
    found: dict[str, Judgements] = {}
    for file in files:
        read = _read(file, references or {})
        if read is not None:
            before = found.get(read.name, Judgements(read.name))
            if before.rated:
                raise UsageError(f"{path} holds {read.name} twice, the second time in {file}: name one of the files.")
            found[read.name] = Judgements(
                read.name, before.rated + read.rated, before.pairs + read.pairs, before.bare or read.bare
            )
    if not found:
        raise UsageError(
            f"{path} holds no judgements in a known layout ({_listed(files)}): docs/how-to/people.md lists layouts and sources."
        )
    return list(found.values())


def _read(file: Path, references: References) -> Judgements | None:
    try:
        read = next((read for layout in LAYOUTS if (read := layout(file, references)) is not None), None)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise UsageError(
            f"{file} looks like judgements, but a field is missing or of another kind ({error!r}): fetch it again."
        ) from error
    return None if read is None else _without_unrated(read, file)


def _without_unrated(read: Judgements, file: Path) -> Judgements:
    """Without captions whose ratings are not all numbers: published tables have NaN where people gave none."""
    numbers = ((row, (*row.ratings, *row.aspects.values())) for row in read.rated)
    rated = tuple(row for row, values in numbers if all(map(math.isfinite, values)))
    if read.rated and not rated:
        raise UsageError(f"{file} has no caption whose ratings are all numbers: fetch it again.")
    return replace(read, rated=rated)


def _listed(files: Sequence[Path]) -> str:
    return ", ".join(file.name for file in files[:5]) or "no file"
