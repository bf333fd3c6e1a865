"""One review of a whole collection, from the review parts of its shards."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from tellapart.captioning.gate import LOW_MATCH, SAME_CAPTION, SEVERITY
from tellapart.captioning.records import NO_CAPTION
from tellapart.captioning.review import FEWEST_FOR_OUTLIERS, review_row, review_text, same_limit
from tellapart.captioning.shards.parts import LISTED, STEP, Part, badness
from tellapart.data.remote.folders import Folder

KEPT = 200_000
"""Different captions that are counted at once; beyond, the rarest are dropped."""
ROWS = 10 * LISTED
"""Captions, and errors, that the review lists."""


@dataclass
class Whole:
    """A whole collection.

    Attributes:
        shards: shards that are done.
        captioned: images with a caption.
        broken: images without.
        flagged: captions with a fault that a shard alone can tell.
        seconds: that all shards took together.
        flags: fault -> captions, also of the faults that need the whole collection.
        damaged: shard -> why its tar could not be read to its end.
        failed: shard -> why it was given up.
        same: caption -> how often it occurs at least, where that is too often.
        most: how often a caption may occur.
        uncounted: how many further times any caption may occur, because parts keep only the most frequent ones.
        low: the match below which a caption is an outlier; none where there are none to tell.
        quantiles: share of the captions -> the match that they are below.
        rows: the captions to look at, worst first.
        errors: sentences about images that could not be read.
    """

    shards: int = 0
    captioned: int = 0
    broken: int = 0
    flagged: int = 0
    seconds: float = 0.0
    flags: Counter[str] = field(default_factory=Counter)
    damaged: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    same: dict[str, int] = field(default_factory=dict)
    most: int = 0
    uncounted: int = 0
    low: float | None = None
    quantiles: dict[float, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def merged(
    parts: Iterable[Part],
    failed: Mapping[str, str],
    *,
    checks: Collection[str] = SEVERITY,
    max_same: int | None = None,
    min_match: float | None = None,
) -> Whole:
    """The collection that some shards are together. Memory does not grow with the number of shards.

    Equal captions are counted as the parts count them: a caption that is not among the most frequent ones of a shard is not
    counted there, so the count is a lower bound, and ``uncounted`` says how far off it is at most (the sum of the parts'
    ``left_out``; J. Misra and D. Gries, "Finding repeated elements", 1982, merge summaries in this way). Matches are counted
    in bins of 0.001, so the median and the outliers are exact to that width.

    Args:
        parts: the review parts.
        failed: shard -> why it was given up.
        checks: the faults that count; ``max_same`` and ``min_match`` add theirs.
        max_same: how often a caption may occur; none takes ``same_limit``.
        min_match: the match below which a caption counts as low; none takes the median less four robust standard deviations.

    Example:
        >>> whole = merged([Part("00000.tar", images=2, captioned=2, captions=Counter({"a cup": 2}))], {}, max_same=1)
        >>> whole.same, whole.uncounted
        ({'a cup': 2}, 0)
    """
    whole, counts, matches = Whole(failed=dict(failed)), Counter[str](), Counter[int]()
    lowest: list[dict[str, Any]] = []
    for part in parts:
        _add(whole, part)
        counts.update(part.captions)
        whole.uncounted += part.left_out
        matches.update(part.matches)
        lowest = heapq.nsmallest(ROWS, [*lowest, *part.lowest], key=lambda row: float(row["match"]))
        if len(counts) > 2 * KEPT:
            frequent = counts.most_common(KEPT + 1)
            whole.uncounted += frequent[KEPT][1]
            counts = Counter(dict(frequent[:KEPT]))
    whole.most = same_limit(whole.captioned) if max_same is None else max_same
    if SAME_CAPTION in checks or max_same is not None:
        whole.same = {caption: often for caption, often in counts.most_common() if caption and often > whole.most}
    if whole.same:
        whole.flags[SAME_CAPTION] += sum(whole.same.values())
    whole.quantiles = {share: quantile(matches, share) for share in (0.01, 0.1, 0.5, 0.9)} if matches else {}
    if min_match is not None or LOW_MATCH in checks:
        whole.low = low_bin(matches) if min_match is None else min_match
    _list_low(whole, matches, lowest)
    return whole


def _add(whole: Whole, part: Part) -> None:
    whole.shards += 1
    whole.captioned += part.captioned
    whole.broken += part.broken
    whole.flagged += part.flagged
    whole.seconds += part.seconds
    whole.flags.update(part.flags)
    whole.errors += part.errors[: ROWS - len(whole.errors)]
    if part.damaged:
        whole.damaged[part.shard] = part.damaged
    whole.rows = heapq.nsmallest(ROWS, [*whole.rows, *part.listed], key=badness)


def _list_low(whole: Whole, matches: Counter[int], lowest: list[dict[str, Any]]) -> None:
    """Count the captions of low matches, and list those that the shards did not flag for it."""
    if whole.low is None:
        return
    below = sum(often for step, often in matches.items() if (step + 1) * STEP <= whole.low + STEP / 2)
    whole.flags[LOW_MATCH] = max(below, whole.flags[LOW_MATCH])
    known = {(row["photo"], row["caption"]) for row in whole.rows}
    low = whole.low
    further = [row | {"flags": [*row["flags"], LOW_MATCH]} for row in lowest if float(row["match"]) < low]
    further = [row for row in further if (row["photo"], row["caption"]) not in known]
    whole.rows = heapq.nsmallest(ROWS, [*whole.rows, *further], key=badness)


def quantile(counts: Mapping[int, int], share: float) -> float:
    """The value below which a share of all lies, as the middle of its bin.

    Args:
        counts: number of the bin -> values in it.
        share: between 0 and 1.

    Example:
        >>> quantile({700: 2, 800: 1}, 0.5)
        0.7005
    """
    wanted, seen = share * sum(counts.values()), 0
    for step in sorted(counts):
        seen += counts[step]
        if seen >= wanted:
            return round((step + 0.5) * STEP, 6)
    return math.nan


def low_bin(matches: Mapping[int, int]) -> float | None:
    """As ``low_limit``, from counts in bins."""
    if sum(matches.values()) < FEWEST_FOR_OUTLIERS:
        return None
    middle = quantile(matches, 0.5)
    away: Counter[int] = Counter()
    for step, often in matches.items():
        away[round(abs((step + 0.5) * STEP - middle) / STEP)] += often
    spread = 1.4826 * max(quantile(away, 0.5) - STEP / 2, 0.0)
    return middle - 4 * spread if spread > 0 else None


def write_reviews(folder: Folder, whole: Whole) -> None:
    """Write ``review.html``, and the rows it is made of as ``review.csv``.

    Raises:
        UsageError: the store cannot be written.
        OSError: the same, on this machine.
    """
    import jinja2

    lines = [review_row("", "", "", f"{NO_CAPTION}: {error}") for error in whole.errors]
    lines += [
        # parts of earlier versions have no ids
        review_row(row["photo"], row.get("id", ""), row["caption"], " ".join(row["flags"]), match=row["match"])
        for row in whole.rows
    ]
    same = list(whole.same.items())[:ROWS]
    lines += [review_row("", "", caption, SAME_CAPTION, occurrences=str(often)) for caption, often in same]
    folder.write("review.csv", review_text(lines).encode(errors="backslashreplace"))
    template = (files("tellapart.captioning.shards") / "review.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    page = environment.from_string(template).render(whole=whole, shown=LISTED)
    folder.write("review.html", page.encode(errors="backslashreplace"))
