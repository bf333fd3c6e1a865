"""Captions to review at the end: those that occur too often, those that fit badly, and a list, worst first."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tellapart.captioning.gate import CONFUSED, LOW_MATCH, SAME_CAPTION, SEVERITY, words
from tellapart.captioning.records import NO_CAPTION, Item, Row
from tellapart.errors import UsageError
from tellapart.files import harmless_cell, write_text

COLUMNS = ("photo", "id", "caption", "reasons", "match", "margin", "rival", "occurrences")
"""Readers of tables do not take the first column for an image: a review in a folder of images is not a data set."""
EARLIER_COLUMNS = ("photo", "caption", "reasons", "match", "occurrences")
"""Those of reviews of earlier versions, which may be replaced, too."""
FEWEST_FOR_OUTLIERS = 50
"""Captions needed before outliers of likeness are reported."""


def require_own_review(path: Path) -> None:
    """Raise if a file that is not a review has the place of one.

    Raises:
        UsageError: naming the file.
    """
    with suppress(FileNotFoundError), path.open("rb") as file:
        first = file.readline().rstrip(b"\r\n")
        if first not in (b"", *(",".join(columns).encode() for columns in (COLUMNS, EARLIER_COLUMNS))):
            raise UsageError(f"{path} is not a review of captions, and would be replaced by one: rename or move it.")


def same_limit(images: int) -> int:
    """How often a caption may occur in a collection: ten times, or once in a thousand images if that is more."""
    return max(10, images // 1000)


def low_limit(matches: Sequence[float]) -> float | None:
    """The match below which a caption is an outlier of its collection: the median less four robust standard deviations.

    A robust standard deviation is 1.4826 times the median distance from the median. None for fewer than 50 captions, or
    when half of them match equally well.
    """
    if len(matches) < FEWEST_FOR_OUTLIERS:
        return None
    middle = statistics.median(matches)
    spread = 1.4826 * statistics.median(abs(match - middle) for match in matches)
    return middle - 4 * spread if spread > 0 else None


def occurrences(rows: Sequence[Row]) -> Counter[str]:
    """How often each caption occurs, without regard to case and punctuation."""
    return Counter(same_words(caption.caption) for _, caption in rows)


def judged(
    rows: Sequence[Row], *, checks: Sequence[str], max_same: int | None = None, min_match: float | None = None
) -> list[Row]:
    """The rows with the flags that need the whole collection.

    Args:
        rows: all that were captioned.
        checks: the faults that count.
        max_same: how often a caption may occur; none takes ``same_limit``.
        min_match: the gate's own limit; none takes ``low_limit``.
    """
    often = occurrences(rows)
    most = same_limit(len(rows)) if max_same is None else max_same
    lowest = None
    if min_match is None and LOW_MATCH in checks:
        lowest = low_limit([caption.match for _, caption in rows if caption.match is not None])
    judged: list[Row] = []
    for item, caption in rows:
        if SAME_CAPTION in checks and caption.caption and often[same_words(caption.caption)] > most:
            caption = caption.flagged(SAME_CAPTION)
        if lowest is not None and caption.match is not None and caption.match < lowest:
            caption = caption.flagged(LOW_MATCH)
        judged.append((item, replace(caption, flags=tuple(sorted(caption.flags, key=SEVERITY.index)))))
    return judged


def write_review(path: Path, rows: Sequence[Row], errors: Mapping[str, str], items: Sequence[Item]) -> int:
    """Write the list of images to look at, worst first, and tell how long it is; without any, the file is removed.

    First come images without a caption, then captions by their worst fault, then by the number of faults and by match; those that
    are confused with another image by how little sets them apart.
    """
    often = occurrences(rows)
    broken = [
        review_row(item.image.name, item.id, "", f"{NO_CAPTION}: {errors[item.id]}")
        for item in items
        if item.id in errors
    ]
    lines = [
        review_row(
            item.image.name,
            item.id,
            caption.caption,
            " ".join(caption.flags),
            match=caption.match,
            margin=caption.margin,
            rival=caption.rival or "",
            occurrences=str(often[same_words(caption.caption)]),
        )
        for item, caption in flagged_first(rows)
    ]
    if not broken and not lines:
        path.unlink(missing_ok=True)
        return 0
    write_text(path, review_text([*broken, *lines]))
    return len(broken) + len(lines)


def flagged_first(rows: Iterable[Row]) -> list[Row]:
    """Those with a fault, worst first."""
    return sorted(((item, caption) for item, caption in rows if caption.flags), key=_badness)


def review_row(
    photo: str,
    image_id: str,
    caption: str,
    reasons: str,
    *,
    match: float | None = None,
    margin: float | None = None,
    rival: str = "",
    occurrences: str = "",
) -> list[str]:
    """A row of a review, in the order of ``COLUMNS``, in which no text is a formula."""
    texts = [harmless_cell(text) for text in (photo, image_id, caption, reasons)]
    numbers = ["" if value is None else f"{value:.4f}" for value in (match, margin)]
    return [*texts, *numbers, harmless_cell(rival), occurrences]


def review_text(rows: Iterable[Sequence[str]]) -> str:
    """Rows as a file."""
    text = io.StringIO()
    csv.writer(text).writerows([COLUMNS, *rows])
    return text.getvalue()


def _badness(row: Row) -> tuple[int, int, float]:
    caption = row[1]
    worst = min(SEVERITY.index(flag) for flag in caption.flags)
    value = caption.margin if SEVERITY[worst] == CONFUSED else caption.match
    return worst, -len(caption.flags), math.inf if value is None else value


def same_words(caption: str) -> str:
    """A caption without case and punctuation, by which equal ones are counted."""
    return " ".join(words(caption)) or caption
